"""ZeroMQ ipc links between the processes: doorbells, never owners.

ZeroMQ accepts what it later loses: a killed receiver takes hundreds of accepted frames with it.  So a frame only says
where to look in the slab, whoever receives it checks what it says against the slab, and whoever starts sweeps the slab.
High-water marks are 0 (no limit): the slab bounds how much there can be to say.  What status is
told has limits.

The receiving side binds; a sender connects and may start first.  The sockets lie in the run directory (mode 0700).
What comes out of one and makes no sense is logged and passed over: it must not end a process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import zmq

from bruce_mp.errors import SlabError, StartError
from bruce_mp.pipes.frames import pack_parcels, unpack_parcels

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.pipes.frames import Parcel

__all__ = [
    "COPIES",
    "DISCARDS",
    "LAST_WORDS_MS",
    "ROUTER_FROM_DISPATCHERS",
    "ROUTER_FROM_INPUTS",
    "Links",
    "Receiver",
    "Sender",
    "dispatcher_link",
]

ROUTER_FROM_INPUTS: Final = "router-runs"
ROUTER_FROM_DISPATCHERS: Final = "router-events"
DISCARDS: Final = "status-discards"
COPIES: Final = "status-copies"
_LOG: Final = logging.getLogger(__name__)
_LIMITS: Final = {DISCARDS: 100, COPIES: 20}
"""Messages under way on links that are no doorbells: what status does not take stays with its sender, within bounds."""

LAST_WORDS_MS: Final = 500
"""How long a process that ends waits for status to take what it had to say."""


def dispatcher_link(slot: int) -> str:
    """The name of the link to the dispatcher of a slot."""
    return f"dispatcher-{slot}"


class Sender:
    """The sending end of a link.  Never blocks."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, parcels: list[Parcel]) -> None:
        """Send parcels in one message, in order; nothing for an empty list."""
        if parcels:
            self._socket.send(pack_parcels(parcels), zmq.DONTWAIT)

    def send_bytes(self, data: bytes) -> bool:
        """Send bytes; False when the link is full and they were dropped."""
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close, and forget what was not taken."""
        self._socket.close(linger=0)


class Receiver:
    """The receiving end of a link."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def receive(self) -> list[Parcel]:
        """The parcels of the next message, [] when there is none."""
        while data := self.receive_bytes():
            try:
                return unpack_parcels(data)
            except SlabError as error:
                _LOG.warning("%s It is passed over; what it should have said is in the slab.", error)
        return []

    def receive_bytes(self) -> bytes:
        """The next message, b"" when there is none."""
        try:
            return self.socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return b""


class Links:
    """The links of one process.  `directory` is the run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def _endpoint(self, name: str) -> str:
        return f"ipc://{self._directory / name}.ipc"

    def sender(self, name: str) -> Sender:
        """Connect to a link, whether its receiver is there yet or not."""
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, _LIMITS.get(name, 0))
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._endpoint(name))
        return Sender(socket)

    def receiver(self, name: str) -> Receiver:
        """Bind a link.  A socket file that a dead process left is replaced.  Raises StartError when it cannot be."""
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, _LIMITS.get(name, 0))
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(self._endpoint(name))
        except zmq.ZMQError as error:
            socket.close()
            raise StartError(
                f"The socket {self._directory / name}.ipc cannot be made: {error.strerror}. Look what is there, and at "
                "the permissions of the directory; nobody but the daemon should use it."
            ) from error
        return Receiver(socket)

    def close(self, flush_ms: int = 0) -> None:
        """Close all links; what is under way may take `flush_ms` to be taken."""
        self._context.destroy(linger=flush_ms)
