"""A stream connection of a worker: its socket, and what the worker knows of who is at the other end."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from bruce_mp.input.clients import Client

__all__ = ["Connection"]


class Connection:
    """A client and its socket.  `outgoing` are answers that it has not taken yet; it may have left, but for those."""

    __slots__ = ("client", "has_left", "outgoing", "socket")

    def __init__(self, connection: socket.socket, client: Client) -> None:
        self.socket = connection
        self.client = client
        self.outgoing = bytearray()
        self.has_left = False

    @property
    def events(self) -> int:
        """What to wait for."""
        return (0 if self.has_left else select.EPOLLIN) | (select.EPOLLOUT if self.outgoing else 0)
