"""Paused connections: there is no room for their messages, or their user's quota is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.input.clients import StreamClientState
    from bruce_mp.ipc.loop import Loop, Timer

__all__ = ["PausedConnections"]

_FOR_ROOM_MS: Final = 5
"""Time after which room may have become free."""
_LONGEST_FOR_TOPIC_MS: Final = 50
"""Pauses of the connections that wait for a stuck topic double up to this value."""


class PausedConnections:
    """Paused connections by descriptor.  After each `pause`, `retry` is called when another attempt makes sense."""

    def __init__(self, loop: Loop, retry: Callable[[], None]) -> None:
        self._loop = loop
        self._retry = retry
        self._clients: dict[int, StreamClientState] = {}
        self._timer: Timer | None = None
        self._due_ms = 0
        self._vain: dict[bytes, int] = {}
        """The topics that still hold their shares in the present look, each with the connection that was retried."""
        self._topic_pauses_ms: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._clients

    def add(self, descriptor: int, client: StreamClientState) -> None:
        """Pause a connection; its client has the end of the pause."""
        self._clients[descriptor] = client

    def discard(self, descriptor: int) -> None:
        """Remove a connection that resumes or is gone."""
        client = self._clients.pop(descriptor, None)
        if client is not None:
            self._topic_pauses_ms.pop(client.stuck_topic, None)
        if not self._clients:
            self._topic_pauses_ms.clear()

    def is_for_room(self, descriptor: int) -> bool:
        """Report if a connection is paused for room that any topic's delivery may free."""
        client = self._clients.get(descriptor)
        return client is not None and not client.held_until_ms and not client.stuck_topic

    @property
    def any_for_room(self) -> bool:
        """Report if any connection waits for room."""
        return any(map(self.is_for_room, self._clients))

    def due(self, now_ms: int) -> list[int]:
        """Return the connections that may resume; those that do not wait for room move to the back."""
        found = [descriptor for descriptor, client in self._clients.items() if client.held_until_ms <= now_ms]
        for descriptor in found:
            if not self.is_for_room(descriptor):
                self._clients[descriptor] = self._clients.pop(descriptor)
        return found

    def retry_one(
        self, descriptor: int, may_go_on: Callable[[StreamClientState], bool], admit: Callable[[int], None]
    ) -> None:
        """Admit what a waiting connection sent, unless another one just waited for the same topic in vain.

        A retry parses all messages that wait, so one connection stands for all that wait for its topic.
        """
        client = self._clients[descriptor]
        topic, size = client.stuck_topic, len(client.unprocessed)
        if topic and topic in self._vain:
            return
        if not may_go_on(client):
            self._vain[topic] = descriptor
            return
        admit(descriptor)
        if not client.is_blocked or len(client.unprocessed) < size:
            self._topic_pauses_ms.pop(topic, None)
        if client.is_blocked and client.stuck_topic:
            self._vain[client.stuck_topic] = descriptor

    def hold_topics(self, now_ms: int) -> None:
        """End a look: hold the connections of all topics that still hold their shares, with longer and longer pauses.

        The connection that was retried moves to the back, so that another one of its topic goes first in the next look.
        """
        vain, self._vain = self._vain, {}
        if not vain:
            return
        for topic, descriptor in vain.items():
            pause_ms = 2 * self._topic_pauses_ms.get(topic, 0) or _FOR_ROOM_MS
            self._topic_pauses_ms[topic] = min(pause_ms, _LONGEST_FOR_TOPIC_MS)
            if descriptor in self._clients:
                self._clients[descriptor] = self._clients.pop(descriptor)
        for client in self._clients.values():
            if client.stuck_topic in vain:
                client.held_until_ms = now_ms + self._topic_pauses_ms[client.stuck_topic]

    def pause(self) -> None:
        """Set a timer that calls `retry` when a connection may resume."""
        held_ms = [client.held_until_ms for client in self._clients.values()]
        self._call_by(min(held_ms) if all(held_ms) else steady_ms() + _FOR_ROOM_MS)

    def retry_soon(self) -> None:
        """Let all connections retry at once, because quotas may have changed."""
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
