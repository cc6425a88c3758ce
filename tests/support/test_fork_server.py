"""Forked programs behave as started ones: exit code, descriptors, environment, and an end with their session."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import ExitCode
from support import processes
from support.daemon import Daemon
from support.daemon_runs import run_until_exit
from support.fork_server import FORK_SERVER, ForkedProcess
from support.traffic import Load, start_senders

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.process

TESTS: Final = Path(__file__).parents[1]
SESSION: Final = """
import sys, time
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker import control
from support import processes
from support.fork_server import FORK_SERVER, start_broker
processes.become_subreaper()
FORK_SERVER.enable()
control.start_process = start_broker
print(DevBroker().pid, flush=True)
time.sleep(600)
"""


def start(arguments: Sequence[str]) -> ForkedProcess:
    null = subprocess.DEVNULL
    return FORK_SERVER.start("bruce_mp", arguments, stdin=null, stdout=null, stderr=subprocess.STDOUT)


def test_the_exit_code_is_that_of_the_program(tmp_path: Path) -> None:
    assert start(["run", "--config", str(tmp_path / "missing")]).wait(60) == ExitCode.SETUP
    assert start(["run"]).wait(60) == ExitCode.USAGE


def process_of(started: DevBroker | Daemon) -> object:
    return started._process


def test_a_wait_ends_in_time_and_a_signal_is_the_exit_code() -> None:
    with DevBroker() as broker:
        forked = process_of(broker)
        assert isinstance(forked, ForkedProcess)
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(0.05)
        forked.kill()
        assert forked.wait(60) == -signal.SIGKILL


def kinds_of_descriptors() -> list[str]:
    """Return the sorted targets of the descriptors of an embedded broker, without the numbers in them."""
    with DevBroker() as broker:
        broker.faults()  # the answer shows that the broker has accepted the control connection
        links = list(Path(f"/proc/{broker.pid}/fd").iterdir())
        return sorted(re.sub(r"\d+", "", str(link.readlink())) for link in links)


def test_a_forked_program_has_the_descriptors_of_a_started_one(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = kinds_of_descriptors()
    monkeypatch.setattr(FORK_SERVER, "is_enabled", False)
    assert forked == kinds_of_descriptors()


def test_a_forked_program_gets_sockets_as_from_systemd(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "127.0.0.1:1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(daemon.socket_path))
        daemon.handed_over["bruce.socket"] = opened
        with daemon:
            assert isinstance(process_of(daemon), ForkedProcess)
            daemon.send("topic", b"value")
            daemon.wait_received(1)
            daemon.kill_all()
    assert daemon.socket_path.is_socket()


def test_a_forked_program_without_privilege_is_subject_to_file_permissions(tmp_path: Path) -> None:
    config = tmp_path / "bruce.toml"
    config.touch(mode=0)
    ended = run_until_exit(config)
    assert ended.code == ExitCode.SETUP
    assert "Permission denied" in ended.text


def test_a_forked_sender_sends_the_messages_of_its_load(tmp_path: Path) -> None:
    load = Load(("topic",), senders=2, messages=3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "in"))
        senders = start_senders(load, tmp_path / "in")
        assert all(isinstance(sender, ForkedProcess) for sender in senders)
        assert [sender.wait(60) for sender in senders] == [0, 0]
        receiver.setblocking(False)
        assert sum(b"topic" in receiver.recv(100_000) for _ in range(load.total)) == load.total


def test_a_changed_environment_needs_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FORK_SERVER.can_start()
    assert not FORK_SERVER.can_start(env={})
    monkeypatch.setenv("BRUCE_KERNELS", "pure")
    assert not FORK_SERVER.can_start()
    with DevBroker() as broker:
        assert not isinstance(process_of(broker), ForkedProcess)


def test_forked_programs_end_with_their_session() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    session = subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True, env=environment)
    assert session.stdout is not None
    with session, session.stdout:
        broker = psutil.Process(int(session.stdout.readline()))
        broker.suspend()  # else the broker would end because its standard input is closed
        session.kill()
    assert processes.still_alive([broker], grace=3) == []
