"""Stream clients after `close`: the counts include each message once, and no call opens a connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from support.client_programs import LANGUAGES, ConformanceProgram, build, param, run_tool
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

PHP: Final = """
require 'Bruce.php';
$client = new Bruce\\StreamClient($argv[1]);
$message = new Bruce\\Message('t', 'v');
echo $client->flush(20)->delivered, ' ', $client->close(), "\\n";
foreach ([fn() => $client->write(20), fn() => $client->flush(20)] as $call) {
    try {
        echo 'no error: ' . json_encode($call()) . "\\n";
    } catch (Bruce\\FlushError $error) {
        echo "$error->reason {$error->getMessage()}\\n";
    }
}
echo json_encode($client->send($message)), ' ', $client->close(), ' ';
echo $client->stats()['closed'], ' ', $client->stats()['connections'], "\\n";
"""
RUBY: Final = """
require './bruce'
client = Bruce::StreamClient.new(path: ARGV[0])
puts "#{client.flush(timeout: 20).delivered} #{client.close}"
[-> { client.write(timeout: 20) }, -> { client.flush(timeout: 20) }].each do |call|
  puts "no error: #{call.call}"
rescue Bruce::FlushError => e
  puts "#{e.code.to_s.upcase} #{e.message}"
end
puts [client.send('t', 'v'), client.close, client.stats.closed, client.stats.connections].join(' ')
"""
RUBY_THREADS: Final = """
require './bruce'
client = Bruce::StreamClient.new(path: ARGV[0], buffer: 8 << 20)
client.send('t', 'v' * 1_500_000)
writer = Thread.new do
  client.write(timeout: 60)
rescue Bruce::FlushError => e
  e.code
end
Thread.pass until writer.stop?
puts [client.close(timeout: 0), writer.value, client.stats.connections].join(' ')
"""
JAVA: Final = """
import bruce.client.Message;
import bruce.client.StreamClient;
import java.time.Duration;

final class CloseInterrupted {
    public static void main(String[] arguments) {
        StreamClient client = StreamClient.unix(arguments[0]).closeTimeout(Duration.ofSeconds(60)).build();
        Thread.currentThread().interrupt();
        client.send(Message.to("t").value("v").build());
        client.close();
        System.out.println(client.stats().sent() + " " + client.stats().closed() + " " + Thread.interrupted());
    }
}
"""
EXIT_S: Final = 0.5
"""Time in which a program ends that does not wait."""
WITHOUT_COUNTS: Final = {"c", "rust"}
"""The languages in which `close` frees the client."""
PROGRAMS: Final = {"php": ("php", "-r", PHP, "--"), "ruby": ("ruby", "-e", RUBY, "--")}


@pytest.mark.parametrize("name", [param(name) for name in PROGRAMS])
def test_a_closed_client_opens_no_connection(name: str, tmp_path: Path) -> None:
    build(name)
    with StreamDaemon(tmp_path / "in"):
        said = run_tool(name, (*PROGRAMS[name], str(tmp_path / "in")))
    assert said.splitlines() == ["0 0", *["CLOSED The client is closed."] * 2, "false 0 1 1"]


@pytest.mark.parametrize("name", [param("ruby")])
def test_a_write_ends_when_another_thread_closes_the_client(name: str, tmp_path: Path) -> None:
    build(name)
    with StreamDaemon(tmp_path / "in") as daemon:
        daemon.reading.clear()
        said = run_tool(name, ("ruby", "-e", RUBY_THREADS, "--", str(tmp_path / "in")))
        assert said.split() == ["1", "closed", "1"]
        daemon.reading.set()


@pytest.mark.parametrize("name", [param(name) for name in LANGUAGES if name not in WITHOUT_COUNTS])
def test_a_close_within_a_write_counts_each_message_once(name: str, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon, ConformanceProgram(build(name), name) as program:
        daemon.reading.clear()  # the connection fills up within a write of several messages
        program.open_stream(tmp_path / "in", 8 << 20)
        accepted = program.send_stream("t", range(4000), 1000)
        daemon.wait_unread(1 << 16)
        program.close_stream(200)
        stats = program.stream_stats()
        assert stats["sent"] > 0
        assert (accepted, stats["refused"], stats["waiting"]) == (4000, 0, 0)
        assert stats["sent"] + stats["closed"] == accepted
        daemon.reading.set()


def test_an_interrupted_thread_writes_the_buffer_at_close(tmp_path: Path) -> None:
    program = tmp_path / "CloseInterrupted.java"
    program.write_text(JAVA)
    with StreamDaemon(tmp_path / "in") as daemon:
        assert run_tool("java", (*build("java")[:-1], str(program), str(tmp_path / "in"))).split() == ["1", "0", "true"]
        assert len(daemon.wait(1)) == 1


@pytest.mark.parametrize("appender", ["log4j", "logback"])
def test_an_appender_in_java_writes_its_events_at_the_end_of_the_program(appender: str, tmp_path: Path) -> None:
    java, *options = build("java")[:-1]
    system = (f"-Dstream={tmp_path / 'in'}", "-Dtopic=logs")
    classes = f"{options[-1]}:target/dependency/*"
    command = [java, *options[:-1], classes, *system, "bruce.client.LogWithAppenders", appender]
    with ConformanceProgram(command, "java") as program:
        assert program.ask("") == ["ended"]
        time.sleep(EXIT_S)
        with StreamDaemon(tmp_path / "in") as daemon:
            assert len(daemon.wait(1)) == 1
