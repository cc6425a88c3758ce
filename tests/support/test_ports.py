"""A reserved port stays reserved while its server is down, and the server can bind it."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import pytest

from support.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def port() -> Iterator[ReservedPort]:
    reserved = ReservedPort()
    yield reserved
    reserved.release()


def test_connections_are_refused_while_the_server_is_down(port: ReservedPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=5)


def test_the_server_can_bind_the_port_repeatedly(port: ReservedPort) -> None:
    for _ in range(3):
        with (
            socket.create_server(("127.0.0.1", port.number)),
            socket.create_connection(("127.0.0.1", port.number), timeout=5) as client,
        ):
            assert client.getpeername()[1] == port.number


def test_other_sockets_cannot_bind_the_port(port: ReservedPort) -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port.number))
    assert caught.value.errno == errno.EADDRINUSE
