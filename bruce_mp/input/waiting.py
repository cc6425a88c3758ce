"""The connections that are not read for now: there is no room for what they sent, or their user's quota is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.input.clients import Client
    from bruce_mp.pipes.loop import Loop, Timer

__all__ = ["Waiting"]

_FOR_ROOM_MS: Final = 5
"""After so long somebody may have room who has none."""


class Waiting:
    """They are known by their descriptors.  `retry` is called when it is worth looking again, after each `pause`."""

    def __init__(self, loop: Loop, retry: Callable[[], None]) -> None:
        self._loop = loop
        self._retry = retry
        self._clients: dict[int, Client] = {}
        self._timer: Timer | None = None
        self._due_ms = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._clients

    def add(self, descriptor: int, client: Client) -> None:
        """A connection is not to be read; its client says until when."""
        self._clients[descriptor] = client

    def discard(self, descriptor: int) -> None:
        """It need not wait, or is gone."""
        self._clients.pop(descriptor, None)

    def is_for_room(self, descriptor: int) -> bool:
        """Whether a connection waits, and waits for room that anybody could give."""
        client = self._clients.get(descriptor)
        return client is not None and not client.held_until_ms and not client.stuck_topic

    @property
    def some_for_room(self) -> bool:
        """Whether any waits for room."""
        return any(map(self.is_for_room, self._clients))

    def due(self, now_ms: int) -> list[int]:
        """Those that may be looked at; of those whose interval is over, others go first the next time."""
        found = [descriptor for descriptor, client in self._clients.items() if client.held_until_ms <= now_ms]
        for descriptor in found:
            if not self.is_for_room(descriptor):
                self._clients[descriptor] = self._clients.pop(descriptor)
        return found

    def pause(self) -> None:
        """Have `retry` called when somebody may go on."""
        held_ms = [client.held_until_ms for client in self._clients.values()]
        self._call_by(min(held_ms) if all(held_ms) else steady_ms() + _FOR_ROOM_MS)

    def look_soon(self) -> None:
        """Quotas may have changed: have all looked at."""
        for client in self._clients.values():
            client.held_until_ms = min(client.held_until_ms, 1)
        if self._clients:
            self._call_by(steady_ms())

    def _call_by(self, due_ms: int) -> None:
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = self._loop.call_later(max(1, due_ms - steady_ms()) / 1000, self._call)

    def _call(self) -> None:
        self._timer = None
        self._retry()
