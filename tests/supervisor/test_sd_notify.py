from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from bruce_mp.supervisor.sd_notify import ServiceManager
from support.fake_daemon import FakeDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager that waits for notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def heard(systemd: socket.socket) -> list[str]:
    """Return the notifications so far."""
    systemd.setblocking(False)
    words = []
    while True:
        try:
            words.append(systemd.recv(100).decode())
        except BlockingIOError:
            return words


def test_ready_and_stopping_are_sent_once(systemd: socket.socket) -> None:
    manager = ServiceManager()
    for _ in range(3):
        manager.notify_ready()
    manager.notify_stopping()
    manager.notify_stopping()
    manager.notify_alive(1.0)
    assert heard(systemd) == ["READY=1", "STOPPING=1"]
    assert "NOTIFY_SOCKET" not in os.environ


def test_watchdog_messages_are_sent_at_a_third_of_the_interval(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager = ServiceManager()
    for now in (100.0, 100.9, 101.0, 101.5, 102.1):
        manager.notify_alive(now)
    assert heard(systemd) == ["WATCHDOG=1"] * 3


def test_no_watchdog_message_is_sent_for_another_pid(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    ServiceManager().notify_alive(100.0)
    assert heard(systemd) == []


def test_an_abstract_socket_name_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bruce-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        ServiceManager().notify_ready()
        assert heard(listener) == ["READY=1"]


def test_a_missing_notify_socket_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
    ServiceManager().notify_ready()


def test_a_notification_to_a_full_socket_is_repeated(systemd: socket.socket) -> None:
    manager = ServiceManager()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                other.sendto(b"STATUS=other unit", str(systemd.getsockname()))
    manager.notify_ready()
    assert {*heard(systemd)} == {"STATUS=other unit"}
    for _ in range(2):
        manager.notify_ready()
    assert heard(systemd) == ["READY=1"]


@pytest.mark.process
def test_a_daemon_notifies_ready_watchdog_and_stopping(
    tmp_path: Path, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    with FakeDaemon(tmp_path) as daemon:
        daemon.start()
        words = [systemd.recv(100).decode()]
        while words[-1] != "READY=1":
            words.append(systemd.recv(100).decode())
        assert set(words[:-1]) <= {"WATCHDOG=1"}
        assert daemon.text().count("is ready") >= 3
        assert systemd.recv(100) == b"WATCHDOG=1"
        assert daemon.end() == 0
    assert [message for message in heard(systemd) if message != "WATCHDOG=1"] == ["STOPPING=1"]


def test_a_reload_is_notified_once_with_its_end(systemd: socket.socket) -> None:
    manager = ServiceManager()
    manager.notify_reloading()
    assert heard(systemd) == []  # the daemon was never ready
    manager.notify_ready()
    for _ in range(3):
        manager.notify_reloading()
    manager.notify_ready()
    ready, reloading, again = heard(systemd)
    assert (ready, reloading.splitlines()[0], again) == ("READY=1", "RELOADING=1", "READY=1")
    assert reloading.splitlines()[1].removeprefix("MONOTONIC_USEC=").isdecimal()
