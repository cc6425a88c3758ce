"""Sockets of a service manager outlive the daemon: its clients notice no restart."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import DatagramClient, StreamClient, TcpClient
from support import processes
from support.daemon import Daemon
from support.daemon_runs import Sender, run_until_exit
from support.read_back import broker_fixture, read_back, values_in, wait_for_records
from support.traffic import Load, assert_all_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS = ("red", "green")
LOOPBACK = ("127.0.0.1", 0)
BLOCKING = {"input.unix_datagram.when_full": "block"}
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 2))


@pytest.fixture
def daemon(tmp_path: Path, broker: DevBroker) -> Iterator[Daemon]:
    """Yield a daemon that is not started, with a datagram socket that the test holds."""
    daemon = Daemon(tmp_path, broker.bootstrap, BLOCKING)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(daemon.socket_path))
        daemon.handed_over["bruce.socket"] = opened
        yield daemon


def test_a_sender_sees_no_error_over_restarts_and_a_kill(daemon: Daemon, broker: DevBroker) -> None:
    endless = Load(TOPICS, senders=1, messages=10**9, largest=300)
    sender = Sender(endless, daemon.socket_path, pause_s=0.002)
    sender.start()  # before there is a daemon
    with daemon:
        for _ in range(2):
            daemon.wait_received(150)
            assert daemon.terminate() == 0
            assert daemon.socket_path.is_socket()
            daemon.start()
        daemon.wait_received(150)
        daemon.kill_supervisor()
        daemon.start()
        load = sender.stop()
        wait_for_records(broker, load.total)
        daemon.wait_settled(1)
    assert sender.refusal is None
    assert_all_there(load, read_back(broker, TOPICS))
    assert daemon.socket_path.is_socket()


def test_messages_sent_without_a_daemon_wait_for_the_next_daemon(daemon: Daemon, broker: DevBroker) -> None:
    with daemon, DatagramClient(daemon.socket_path, timeout=0) as client:
        client.send("red", b"before")
        daemon.wait_settled(1)
        assert daemon.terminate() == 0
        client.send("red", b"between")
        daemon.start()
        daemon.wait_settled(1)
    assert sorted(values_in(broker, "red")) == [b"before", b"between"]


def test_inherited_listening_sockets_are_used(tmp_path: Path, broker: DevBroker) -> None:
    stream = tmp_path / "in.stream"
    with socket.create_server(str(stream), family=socket.AF_UNIX) as unix, socket.create_server(LOOPBACK) as tcp:
        port = tcp.getsockname()[1]
        streams = {f"input.unix_stream.{key}": value for key, value in {"enable": "true", "path": stream}.items()}
        daemon = Daemon(tmp_path, broker.bootstrap, {**streams, "input.tcp.enable": "true", "input.tcp.port": port})
        daemon.handed_over.update({"one": unix, "two": tcp})
        with daemon, StreamClient(stream, timeout=30) as by_path, TcpClient(port, timeout=30) as by_port:
            for client in (by_path, by_port):
                client.send("red", b"before")
                client.flush()
            assert daemon.terminate() == 0
            assert stream.is_socket()
            daemon.start()
            for client in (by_path, by_port):
                client.send("red", b"after")
                client.flush()
            daemon.wait_settled(2)
    assert sorted(values_in(broker, "red")) == [b"after", b"after", b"before", b"before"]


def test_an_inherited_socket_without_a_setting_is_refused(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "127.0.0.1:1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "other"))
        ended = run_until_exit(daemon.config_path, handed_over={"bruce.socket": opened})
    assert ended.code == 1
    assert f"No setting names the socket at unix:{tmp_path}/other that the service manager passes" in ended.text
    assert not daemon.socket_path.exists()
    assert not daemon.slab_path.exists()


def test_systemd_hands_the_socket_over(tmp_path: Path, broker: DevBroker) -> None:
    """systemd's own program starts the daemon at the first datagram, which is delivered."""
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed")
    daemon = Daemon(tmp_path, broker.bootstrap)
    listen = ["--datagram", f"--listen={daemon.socket_path}", "--setenv=PYTHONPATH", "--setenv=PATH"]
    command = [activate, *listen, *processes.BRUCE, "run", "--config", str(daemon.config_path)]
    with daemon.log_path.open("wb") as log:
        process = processes.spawn(command, output=log, env={**os.environ, "SYSTEMD_LOG_LEVEL": "info"})
    try:
        processes.wait_until(daemon.socket_path.is_socket, "the socket")
        daemon.send("red", b"wake up")
        processes.wait_until(lambda: len(values_in(broker, "red")) == 1, "the message")
        process.terminate()
        assert process.wait(30) == 0, daemon.log()
    finally:
        process.kill()
        process.wait()
    assert daemon.socket_path.is_socket()
