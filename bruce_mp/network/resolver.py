"""Resolve host names without blocking the event loop.

`getaddrinfo()` may take many seconds while name servers are unreachable, and brokers are often unreachable at the same
time, so a thread calls it. Each connect resolves the name again, because a restarted broker may have another address.

Each name that is being resolved has one thread, and further requests for the name share its answer. So there are never
more threads than names, and no name waits for the look-up of another.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.ipc.loop import Loop

__all__ = ["Address", "Resolver"]

Address = tuple[int, str, int]
"""Address family, numeric host, port."""


class Resolver:
    """A resolver of host names for the callbacks of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._callbacks: dict[tuple[str, int], list[Callable[[list[Address], str], None]]] = {}

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        """Call `callback(addresses, error)` from the loop: addresses in order of preference, or none and the reason."""
        callbacks = self._callbacks.setdefault((host, port), [])
        callbacks.append(callback)
        if len(callbacks) == 1:
            self._loop.call_in_thread(
                f"resolver-{host}", partial(_look_up, host, port), partial(self._on_resolved, (host, port))
            )

    def _on_resolved(self, name: tuple[str, int], found: tuple[list[Address], str]) -> None:
        for callback in self._callbacks.pop(name):
            callback(*found)


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
