"""Stream clients without permission to connect: a flush fails at the second denial in a row, not at its time limit.

The first denial does not count, because a daemon that starts sets the owner after it creates the socket.
`client/test_outage.py` has the tests of the client in Python.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest

from support.as_user import denied_connections, without_privilege
from support.client_programs import CLIENTS, LANGUAGES, ConformanceProgram, build, param
from support.processes import time_limit, wait_until
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

BRUCE_TIMED_OUT: Final = -8
LONG_S: Final = 300
LONG_MS: Final = 60_000
NO_LIMIT: Final = {"c": -1}
"""The time limits of languages that keep to it without permission: in C only calls without a limit end early."""

PHP: Final = """
[$_, $directory, $limit] = $argv;
require 'Bruce.php';
function open(string $directory): Bruce\\StreamClient {
    $client = new Bruce\\StreamClient("$directory/in");
    $client->send(new Bruce\\Message('t', 'v'));
    return $client;
}
function flush_of(Bruce\\StreamClient $client, float $limit): string {
    try {
        return "delivered {$client->flush($limit)->delivered}";
    } catch (Bruce\\FlushError $error) {
        return "$error->reason {$error->getMessage()}";
    }
}
chmod($directory, 0);
$isRoot = posix_geteuid() === 0 && posix_seteuid(40001); // root needs no permission
$early = open($directory);
echo flush_of($early, 0), "\\n";
if ($isRoot) {
    posix_seteuid(0);
}
chmod($directory, 0700);
echo flush_of($early, (float) $limit), "\\n";
chmod($directory, 0);
if ($isRoot) {
    posix_seteuid(40001);
}
$denied = open($directory);
echo flush_of($denied, (float) $limit), "\\n";
echo var_export($denied->write((float) $limit), true), ' ', $denied->close((float) $limit), "\\n";
"""

RUBY: Final = """
require './bruce'
directory, limit = ARGV
limit = limit.to_f
open = lambda do
  client = Bruce::StreamClient.new(path: "#{directory}/in")
  client.send('t', 'v')
  client
end
flush = lambda do |client, seconds|
  "delivered #{client.flush(timeout: seconds).delivered}"
rescue Bruce::FlushError => e
  "#{e.code.to_s.upcase} #{e.message}"
end
File.chmod(0, directory)
is_root = Process.euid.zero?
Process::Sys.seteuid(40_001) if is_root # root needs no permission
early = open.call
puts flush.call(early, 0)
Process::Sys.seteuid(0) if is_root
File.chmod(0o700, directory)
puts flush.call(early, limit)
File.chmod(0, directory)
Process::Sys.seteuid(40_001) if is_root
denied = open.call
puts flush.call(denied, limit)
puts "#{denied.write(timeout: limit)} #{denied.close(timeout: limit)}"
"""

PROGRAMS: Final = {"php": ("php", "-r", PHP, "--"), "ruby": ("ruby", "-e", RUBY, "--")}


JAVA: Final = "bruce.client.FlushWithoutPermission"


def command_of(name: str) -> list[str]:
    """Return the command that flushes and closes clients with and without permission, in a language."""
    if name == "java":
        return without_privilege([*build(name)[:-1], JAVA])
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    return list(PROGRAMS[name])


@pytest.mark.parametrize("name", ["java", *PROGRAMS])
def test_a_client_without_permission_says_so_long_before_its_time_limit(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "sockets"
    directory.mkdir()
    command = [*command_of(name), str(directory), str(LONG_S)]
    began_s = time.monotonic()
    with StreamDaemon(directory / "in"):
        try:
            ended = subprocess.run(
                command, cwd=CLIENTS / name, capture_output=True, text=True, timeout=time_limit(20), check=True
            )
        finally:
            directory.chmod(0o700)
    once, later, twice, closed = ended.stdout.splitlines()
    assert once.startswith("TIMED_OUT The time limit passed without a connection")
    assert later == "delivered 1"
    assert twice.startswith("NO_PERMISSION No permission to connect")
    assert "input.unix_stream.mode" in twice
    assert closed == ("1" if name == "java" else "false 1")
    assert time.monotonic() - began_s < LONG_S


@contextmanager
def denied_program(name: str, directory: Path) -> Iterator[tuple[ConformanceProgram, StreamDaemon]]:
    """Yield a program with a client that may not enter the directory of the daemon's socket, and the daemon."""
    directory.mkdir()
    with StreamDaemon(directory / "in") as daemon, ConformanceProgram(without_privilege(build(name)), name) as program:
        directory.chmod(0)
        try:
            program.open_stream(directory / "in")
            yield program, daemon
        finally:
            directory.chmod(0o700)


@pytest.mark.parametrize("name", [param(name) for name in LANGUAGES])
def test_a_flush_without_permission_fails_and_keeps_the_messages(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    with denied_program(name, directory) as (program, daemon):
        assert program.send_stream("t", range(1), 20) == 1
        for _ in range(2):
            assert program.flush(NO_LIMIT.get(name, LONG_MS)).error == "NO_PERMISSION"
        directory.chmod(0o700)
        wait_until(lambda: program.flush(LONG_MS).error is None, "a connection")
        assert len(daemon.messages) == 1
        assert program.close_stream(LONG_MS) == ["ok"]


@pytest.mark.parametrize("name", [param(name) for name in LANGUAGES if name not in {"go", "java"}])
def test_close_without_permission_ends_before_its_time_limit(name: str, tmp_path: Path) -> None:
    """The library in Go keeps to the deadline of its context; the program above closes clients in Java."""
    with denied_program(name, tmp_path / "sockets") as (program, _):
        assert program.send_stream("t", range(1), 20) == 1
        began_s = time.monotonic()
        program.close_stream(NO_LIMIT.get(name, LONG_MS))
        assert time.monotonic() - began_s < LONG_MS / 1000


@pytest.mark.parametrize("name", [param(name) for name in LANGUAGES])
def test_close_connects_once_more_after_a_denial(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    with denied_program(name, directory) as (program, daemon):
        limit = NO_LIMIT.get(name, LONG_MS)
        assert program.flush(limit).error == "NO_PERMISSION"
        directory.chmod(0o700)
        assert program.send_stream("t", range(1), 20) == 1
        assert program.close_stream(limit) == ["ok"]
        assert len(daemon.wait(1)) == 1


def test_the_c_client_gets_through_the_moment_before_the_daemon_sets_the_owner(tmp_path: Path) -> None:
    build("c")
    library = ctypes.CDLL(str(CLIENTS / "c/build/libbruce.so"))
    client = ctypes.c_void_p()
    assert not library.bruce_stream_open_unix(ctypes.byref(client), bytes(tmp_path / "in.stream"), None)
    with StreamDaemon(tmp_path / "in.stream"):
        with denied_connections(tmp_path):
            assert library.bruce_stream_flush(client, 1, 0, None) == BRUCE_TIMED_OUT
        results: list[int] = []
        waiter = Thread(target=lambda: results.append(library.bruce_stream_flush(client, 1, -1, None)), daemon=True)
        waiter.start()
        waiter.join(time_limit(20))
        assert results == [0]
        assert library.bruce_stream_close(client, 0) == 0
