"""Waits for room in the daemon's queue beside threads, forks and signals, in languages without tests of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from support.client_programs import build, param, run_tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

RUBY: Final = """
require './bruce'
daemon = Socket.new(:UNIX, :DGRAM)
daemon.bind(Socket.sockaddr_un(ARGV[0]))
client = Bruce::DatagramClient.new(ARGV[0])
waits = lambda do
  nil while client.send('t', 'v')
  threads = Array.new(2) { Thread.new { client.wait(timeout: 10) rescue $!.class } }
  Thread.pass until threads.all?(&:stop?)
  threads
end
threads = waits.call
child = fork { exit!(client.wait(timeout: 10) ? 0 : 1) }
began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
sent = Array.new(10) { sleep(0.001) && client.send('t', 'v') } # in the pauses, the waits go on
is_prompt = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began < 3
is_waiting = threads.all?(&:alive?)
daemon.recv(100)
puts [sent.none?, is_prompt, is_waiting, *threads.map(&:value), Process.wait2(child)[1].success?].join(' ')
threads = waits.call
client.close
puts threads.map(&:value).join(' ')
"""
PHP: Final = """
require 'Bruce.php';
$daemon = socket_create(AF_UNIX, SOCK_DGRAM, 0);
socket_bind($daemon, $argv[1]);
$client = new Bruce\\DatagramClient($argv[1]);
while ($client->send(new Bruce\\Message('t', 'v')));
$child = pcntl_fork();
if ($child === 0) {
    exit($client->wait(10) ? 0 : 1);
}
$signals = 0;
pcntl_async_signals(true);
pcntl_signal(SIGALRM, function () use (&$signals) { $signals++; });
pcntl_alarm(1);
$began = hrtime(true);
echo json_encode($client->wait(1.5)), ' ', $signals, ' ', json_encode(hrtime(true) - $began >= 1.5e9);
socket_recv($daemon, $message, 100, 0);
pcntl_waitpid($child, $status);
echo " $status";
"""


@pytest.mark.parametrize("name", [param("ruby")])
def test_threads_and_a_child_wait_while_a_thread_sends_and_closes(name: str, tmp_path: Path) -> None:
    build(name)
    said = run_tool(name, ("ruby", "-e", RUBY, "--", str(tmp_path / "in")))
    assert said.splitlines() == ["true true true true true true", "IOError IOError"]


@pytest.mark.parametrize("name", [param("php")])
def test_a_wait_goes_on_after_a_signal_and_in_a_child(name: str, tmp_path: Path) -> None:
    build(name)
    assert run_tool(name, ("php", "-r", PHP, "--", str(tmp_path / "in"))).split() == ["false", "1", "true", "0"]
