"""Resolve host names without blocking the event loop.

`getaddrinfo()` may take many seconds while name servers are unreachable, so a thread calls it. Each connect resolves
the name again, because a restarted broker may have another address.

Each name that is being resolved has one thread, also for several requests. So there are never more threads than names,
and no name waits for the look-up of another name.
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
    """A resolver of host names; `loop` calls the callbacks."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._callbacks: dict[tuple[str, int], list[Callable[[list[Address], str], None]]] = {}

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        """Resolve a name, and call `callback(addresses, "")` from the loop, or `callback([], error)` after a failure.

        The addresses are in the order in which the caller should try them.
        """
        callbacks = self._callbacks.setdefault((host, port), [])
        callbacks.append(callback)
        if len(callbacks) == 1:
            self._loop.call_in_thread(
                f"resolver-{host}", partial(_look_up, host, port), partial(self._on_resolved, (host, port))
            )

    def _on_resolved(self, host_and_port: tuple[str, int], addresses_and_error: tuple[list[Address], str]) -> None:
        for callback in self._callbacks.pop(host_and_port):
            callback(*addresses_and_error)


def _look_up(host: str, port: int) -> tuple[list[Address], str]:
    """Return (addresses, "") or, if there are none, ([], error)."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
    except OSError as error:
        return [], f"its name cannot be resolved ({error.strerror})"
    except (ValueError, OverflowError):  # UnicodeError is a ValueError
        return [], "its name is not valid"
    addresses = [(int(family), str(address[0]), port) for family, _, _, _, address in found]
    return addresses, "" if addresses else "it has no address"
