"""Resolve host names without blocking the event loop.

`getaddrinfo()` may take many seconds while name servers are unreachable, and brokers are often unreachable at the same
time. A thread calls it and reports over a ZeroMQ inproc pipe. Each connect resolves the name again, because brokers
return with other addresses.

One thread at a time resolves a name, and further requests for the name share its answer. So there are never more
threads than names, and no name waits for another. The threads do not keep the process from ending.
"""

from __future__ import annotations

import socket
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.ipc.loop import Loop

__all__ = ["Address", "Resolver"]

Address = tuple[int, str, int]
"""Address family, numeric host, port."""

_ENDPOINT = "inproc://resolved"
_DELIVERY_MS = 1000


class _Answer(msgspec.Struct):
    host: str
    port: int
    addresses: list[Address]
    error: str


class Resolver:
    """A resolver of host names for the callbacks of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._receiver = self._context.socket(zmq.PULL)
        self._receiver.bind(_ENDPOINT)
        self._waiting: dict[tuple[str, int], list[Callable[[list[Address], str], None]]] = {}
        loop.watch(self._receiver, lambda _: self._on_answer())

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        """Call `callback(addresses, error)` from the loop: addresses in order of preference, or none and the reason."""
        waiting = self._waiting.setdefault((host, port), [])
        waiting.append(callback)
        if len(waiting) == 1:
            Thread(target=self._ask, args=(host, port), name=f"resolver-{host}", daemon=True).start()

    def _ask(self, host: str, port: int) -> None:
        answer = _Answer(host, port, *_look_up(host, port))
        try:
            sender = self._context.socket(zmq.PUSH)  # one for each thread: ZeroMQ sockets are not thread-safe
        except zmq.ZMQError:
            return  # the resolver was closed during the look-up
        sender.connect(_ENDPOINT)
        sender.send(msgspec.msgpack.encode(answer))
        sender.close(linger=_DELIVERY_MS)

    def _on_answer(self) -> None:
        answer = msgspec.msgpack.decode(self._receiver.recv(), type=_Answer)
        for callback in self._waiting.pop((answer.host, answer.port)):
            callback(answer.addresses, answer.error)

    def close(self) -> None:
        """Drop all answers that are still to come."""
        self._loop.unwatch(self._receiver)
        self._receiver.close(linger=0)
        self._context.term()


def _look_up(host: str, port: int) -> tuple[list[Address], str]:
    """Return the addresses of a name and an empty string, or no address and the reason."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
    except (OSError, ValueError, OverflowError) as error:  # ValueError: an invalid name
        return [], str(error)
    addresses = [(int(family), str(address[0]), port) for family, _, _, _, address in found]
    return addresses, "" if addresses else "it has no address"
