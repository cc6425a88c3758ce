"""Resolve host names without blocking the event loop.

`getaddrinfo()` may take many seconds while name servers are unreachable, and brokers are often unreachable at the same
time. A thread calls it and reports over a ZeroMQ inproc pipe. Each connect resolves the name again, because brokers
return with other addresses.

One thread at a time resolves a name, and further requests for the name share its answer. So there are never more
threads than names, and no look-up waits for another. The threads do not keep the process from ending.
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
_SEND_LINGER_MS = 1000
"""Time for the result to reach the loop before the thread's socket closes."""


class _Resolution(msgspec.Struct):
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
        self._callbacks: dict[tuple[str, int], list[Callable[[list[Address], str], None]]] = {}
        loop.watch(self._receiver, lambda _: self._on_resolved())

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        """Call `callback(addresses, error)` from the loop: addresses in order of preference, or none and the reason."""
        callbacks = self._callbacks.setdefault((host, port), [])
        callbacks.append(callback)
        if len(callbacks) == 1:
            Thread(target=self._resolve_in_thread, args=(host, port), name=f"resolver-{host}", daemon=True).start()

    def _resolve_in_thread(self, host: str, port: int) -> None:
        resolution = _Resolution(host, port, *_look_up(host, port))
        try:
            sender = self._context.socket(zmq.PUSH)  # one for each thread: ZeroMQ sockets are not thread-safe
        except zmq.ZMQError:
            return  # the resolver was closed during the look-up
        sender.connect(_ENDPOINT)
        sender.send(msgspec.msgpack.encode(resolution))
        sender.close(linger=_SEND_LINGER_MS)

    def _on_resolved(self) -> None:
        resolution = msgspec.msgpack.decode(self._receiver.recv(), type=_Resolution)
        for callback in self._callbacks.pop((resolution.host, resolution.port)):
            callback(resolution.addresses, resolution.error)

    def close(self) -> None:
        """Close the pipe, and drop the results of running look-ups."""
        self._loop.unwatch(self._receiver)
        self._receiver.close(linger=0)
        self._context.term()


def _look_up(host: str, port: int) -> tuple[list[Address], str]:
    """Return the addresses of a name and an empty string, or no address and the reason."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
    except OSError as error:
        return [], f"its name cannot be resolved ({error.strerror})"
    except (ValueError, OverflowError):  # UnicodeError is a ValueError
        return [], "its name is not valid"
    addresses = [(int(family), str(address[0]), port) for family, _, _, _, address in found]
    return addresses, "" if addresses else "it has no address"
