"""Names to addresses without stopping the event loop.

`getaddrinfo()` may take many seconds when name servers are gone, which is when brokers are gone too.  A thread asks,
and says so over a ZeroMQ inproc pipe.  Names are asked for at each connect: brokers come back with other addresses.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.pipes.loop import Loop

__all__ = ["Address", "Resolver"]

Address = tuple[int, str, int]
"""Address family, numeric host, port."""

_ENDPOINT = "inproc://resolved"


class _Answer(msgspec.Struct):
    ticket: int
    addresses: list[Address]
    error: str


class Resolver:
    """Resolves names for the callbacks of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._receiver = self._context.socket(zmq.PULL)
        self._receiver.bind(_ENDPOINT)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="resolver")
        self._waiting: dict[int, Callable[[list[Address], str], None]] = {}
        self._ticket = 0
        loop.watch(self._receiver, lambda _: self._on_answer())

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        """Call `callback(addresses, error)` from the loop: in order of preference, or none and a sentence why."""
        self._ticket += 1
        self._waiting[self._ticket] = callback
        self._threads.submit(self._ask, self._ticket, host, port)

    def _ask(self, ticket: int, host: str, port: int) -> None:
        answer = _Answer(ticket, [], "")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
            answer.addresses = [(family, str(address[0]), port) for family, _, _, _, address in found]
            answer.error = "" if found else "it has no address"
        except (OSError, UnicodeError) as error:
            answer.error = str(error)
        sender = self._context.socket(zmq.PUSH)  # one each time: a ZeroMQ socket belongs to one thread
        sender.connect(_ENDPOINT)
        sender.send(msgspec.msgpack.encode(answer))
        sender.close(linger=1000)

    def _on_answer(self) -> None:
        answer = msgspec.msgpack.decode(self._receiver.recv(), type=_Answer)
        callback = self._waiting.pop(answer.ticket, None)
        if callback is not None:
            callback(answer.addresses, answer.error)
