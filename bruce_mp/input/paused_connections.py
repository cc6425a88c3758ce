"""Paused stream connections: they wait for room, for a stuck topic or for the next interval of a quota.

A topic is *stuck* here while it is over its share of the slab (`topic_share`), so that the lanes refuse its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.ipc.loop import Loop, Timer

__all__ = ["PausedConnections"]

_ROOM_RETRY_MS: Final = 5
"""Interval of retries for connections that wait for room."""
_TOPIC_PAUSE_MAX_MS: Final = 50
"""Pauses of the connections that wait for a stuck topic double up to this value."""


class PausedConnections:
    """Paused connections by descriptor.  After `schedule_retry`, a timer calls `retry` when a connection may resume."""

    def __init__(self, loop: Loop, retry: Callable[[], None]) -> None:
        self._loop = loop
        self._retry = retry
        self._clients: dict[int, StreamClientState] = {}
        self._timer: Timer | None = None
        self._due_ms = 0
        self._stuck_topics: dict[bytes, int] = {}
        """Topics over their shares in the present round of retries, each with the connection of the failed retry."""
        self._topic_pauses_ms: dict[bytes, int] = {}
        """Length of the last pause of each stuck topic."""

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._clients

    def add(self, descriptor: int, client: StreamClientState) -> None:
        """Pause a connection until `client.paused_until_ms`; 0 = soon: a retry every `_ROOM_RETRY_MS`."""
        self._clients[descriptor] = client

    def discard(self, descriptor: int) -> None:
        """Remove a connection that resumes or has closed."""
        client = self._clients.pop(descriptor, None)
        if client is not None:
            self._topic_pauses_ms.pop(client.stuck_topic, None)
        if not self._clients:
            self._topic_pauses_ms.clear()

    def waits_for_room(self, descriptor: int) -> bool:
        """Return True if a connection waits for room in the slab, and not for a stuck topic or a quota."""
        client = self._clients.get(descriptor)
        return client is not None and not client.paused_until_ms and not client.stuck_topic

    @property
    def any_waits_for_room(self) -> bool:
        return any(map(self.waits_for_room, self._clients))

    def rotate_due(self, now_ms: int) -> list[int]:
        """Return the connections at the end of their pause, and move those not waiting for room behind all others."""
        found = [descriptor for descriptor, client in self._clients.items() if client.paused_until_ms <= now_ms]
        for descriptor in found:
            if not self.waits_for_room(descriptor):
                self._clients[descriptor] = self._clients.pop(descriptor)
        return found

    def retry_one(
        self, descriptor: int, may_resume: Callable[[StreamClientState], bool], admit: Callable[[int], None]
    ) -> None:
        """Retry a paused connection, unless a retry for the same stuck topic failed in this round.

        `may_resume` returns False only for a client whose stuck topic is still over its share.

        A retry parses all waiting messages, so one failure makes the round skip the topic's other connections.
        """
        client = self._clients[descriptor]
        topic, size_before = client.stuck_topic, len(client.unprocessed)
        if topic and topic in self._stuck_topics:
            return
        if not may_resume(client):
            self._stuck_topics[topic] = descriptor
            return
        admit(descriptor)
        has_progressed = not client.is_blocked or len(client.unprocessed) < size_before
        if has_progressed:
            self._topic_pauses_ms.pop(topic, None)
        if client.is_blocked and client.stuck_topic:
            self._stuck_topics[client.stuck_topic] = descriptor

    def pause_stuck_topics(self, now_ms: int) -> None:
        """End a round of retries: pause the connections of topics still over their shares, with doubling pauses.

        The retried connection moves to the end, so the next round retries another connection of its topic.
        """
        stuck, self._stuck_topics = self._stuck_topics, {}
        if not stuck:
            return
        for topic, descriptor in stuck.items():
            last_ms = self._topic_pauses_ms.get(topic)
            pause_ms = _ROOM_RETRY_MS if last_ms is None else 2 * last_ms
            self._topic_pauses_ms[topic] = min(pause_ms, _TOPIC_PAUSE_MAX_MS)
            if descriptor in self._clients:
                self._clients[descriptor] = self._clients.pop(descriptor)
        for client in self._clients.values():
            if client.stuck_topic in stuck:
                client.paused_until_ms = now_ms + self._topic_pauses_ms[client.stuck_topic]

    def schedule_retry(self) -> None:
        ends_ms = [client.paused_until_ms for client in self._clients.values()]  # 0 = soon
        self._schedule(min(ends_ms) if all(ends_ms) else steady_ms() + _ROOM_RETRY_MS)

    def retry_soon(self) -> None:
        """Let all connections retry at once, because quotas may have changed."""
        for client in self._clients.values():
            client.paused_until_ms = min(client.paused_until_ms, 1)  # 1 = in the past; 0 (soon) stays 0
        if self._clients:
            self._schedule(steady_ms())

    def _schedule(self, due_ms: int) -> None:
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = self._loop.call_later(max(1, due_ms - steady_ms()) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._retry()
