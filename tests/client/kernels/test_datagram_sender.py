"""The sender of datagrams against a real socket."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.protocol.client.messages import encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from bruce_mp.client.kernels import DatagramSender

NOW_MS: Final = 1_700_000_000_123
LIMIT: Final = 1000


@pytest.fixture
def sender(datagram_sender: ModuleType, path: Path) -> Iterator[DatagramSender]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        yield datagram_sender.DatagramSender(threading.RLock(), opened, str(path), LIMIT)


def send(
    sender: DatagramSender, value: bytes | None, key: bytes | None = None, partition_key: int | None = None
) -> bool:
    return sender.accept("t", value, key, partition_key, NOW_MS, (), False)


def test_a_message_arrives_with_the_bytes_of_the_protocol(daemon: socket.socket, sender: DatagramSender) -> None:
    expected = [
        encode("t", b"value", None, None, timestamp_ms=NOW_MS),
        encode("t", None, b"key", 2**32 - 1, timestamp_ms=NOW_MS),
    ]
    assert send(sender, b"value")
    assert send(sender, None, b"key", -1)
    assert [daemon.recv(LIMIT) for _ in range(2)] == expected
    assert (sender.sent, sender.sent_bytes) == (2, sum(map(len, expected)))


def test_a_message_over_the_limit_is_not_sent(daemon: socket.socket, sender: DatagramSender) -> None:
    overhead = len(encode("t", b"", None, None, timestamp_ms=0))
    assert send(sender, bytes(LIMIT - overhead))
    assert not send(sender, bytes(LIMIT - overhead + 1))
    assert sender.sent == 1


def test_a_full_queue_refuses(daemon: socket.socket, sender: DatagramSender) -> None:
    while send(sender, b""):
        pass
    queued = sender.sent
    daemon.recv(LIMIT)
    assert send(sender, b"")
    assert sender.sent == queued + 1


def test_an_absent_daemon_refuses(sender: DatagramSender) -> None:
    assert not send(sender, b"")
    assert sender.sent == 0


@pytest.mark.usefixtures("daemon")
def test_a_closed_sender_refuses(sender: DatagramSender) -> None:
    sender.close()
    assert not send(sender, b"")


def test_messages_of_the_slow_path_are_counted(sender: DatagramSender) -> None:
    sender.count(17)
    assert (sender.sent, sender.sent_bytes) == (1, 17)


def test_an_abstract_address_is_reached(datagram_sender: ModuleType) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened,
    ):
        receiver.bind("")  # the kernel chooses an abstract address
        receiver.setblocking(False)
        path = "\0" + receiver.getsockname()[1:].decode()
        sender = datagram_sender.DatagramSender(threading.RLock(), opened, path, LIMIT)
        assert send(sender, b"value")
        assert receiver.recv(LIMIT).endswith(b"value")
