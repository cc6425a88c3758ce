"""Paused stream connections: they wait for room, for a stuck topic, for a spill file or for the next quota interval.

For a stream worker, a topic is *stuck* while it is over its share of the slab (`topic_share`): the lanes refuse its
messages.  To *retry* a paused connection is to try to admit its waiting messages.  The worker retries in *rounds*: in a
round, it retries each connection with a pause that has ended.
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
_MAX_TOPIC_PAUSE_MS: Final = 50
"""Longest pause for a stuck topic; after each failed retry, the next pause is twice as long."""


class PausedConnections:
    """The paused connections of a worker, by descriptor; a timer calls `retry` when a pause ends."""

    def __init__(self, loop: Loop, retry: Callable[[], None]) -> None:
        self._loop = loop
        self._retry = retry
        self._clients: dict[int, StreamClientState] = {}
        self._timer: Timer | None = None
        self._due_ms = 0
        self._failed_retries: dict[bytes, int] = {}
        """The stuck topics for which a retry failed in the present round, and the descriptor of that retry."""
        self._topic_pauses_ms: dict[bytes, int] = {}
        """Length in ms of the last pause of each stuck topic."""

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._clients

    def add(self, descriptor: int, client: StreamClientState) -> None:
        """Pause a connection until `client.paused_until_ms`; if that is 0, it is retried every `_ROOM_RETRY_MS`."""
        self._clients[descriptor] = client

    def discard(self, descriptor: int) -> None:
        """Remove a connection that resumes or has closed."""
        client = self._clients.pop(descriptor, None)
        if client is not None:
            self._topic_pauses_ms.pop(client.stuck_topic, None)  # the topic's next pause is short again
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
        """Return the descriptors of the connections with pauses that have ended.

        In the order of retries, connections that wait for room keep their places; the others move to the end.
        """
        due = [descriptor for descriptor, client in self._clients.items() if client.paused_until_ms <= now_ms]
        for descriptor in due:
            if not self.waits_for_room(descriptor):
                self._clients[descriptor] = self._clients.pop(descriptor)
        return due

    def retry_one(
        self, descriptor: int, may_resume: Callable[[StreamClientState], bool], admit: Callable[[int], None]
    ) -> None:
        """Retry a paused connection, unless a retry for the same stuck topic has failed in this round.

        A retry costs time, because it parses all waiting messages of the connection.  `may_resume(client)` returns
        False only if the client's stuck topic is still over its share.  `admit(descriptor)` tries to admit messages.
        """
        client = self._clients[descriptor]
        topic, size_before = client.stuck_topic, len(client.unprocessed)
        if topic and topic in self._failed_retries:
            return
        if not may_resume(client):
            self._failed_retries[topic] = descriptor
            return
        admit(descriptor)
        has_progressed = not client.is_paused or len(client.unprocessed) < size_before
        if has_progressed:
            self._topic_pauses_ms.pop(topic, None)
        if client.is_paused and client.stuck_topic:
            self._failed_retries[client.stuck_topic] = descriptor

    def pause_stuck_topics(self, now_ms: int) -> None:
        """End a round of retries: pause all connections of the topics for which a retry failed.

        The connection of the failed retry moves to the end, so the next round retries another one of the same topic.
        """
        stuck, self._failed_retries = self._failed_retries, {}
        if not stuck:
            return
        for topic, descriptor in stuck.items():
            last_ms = self._topic_pauses_ms.get(topic)
            pause_ms = _ROOM_RETRY_MS if last_ms is None else 2 * last_ms
            self._topic_pauses_ms[topic] = min(pause_ms, _MAX_TOPIC_PAUSE_MS)
            if descriptor in self._clients:
                self._clients[descriptor] = self._clients.pop(descriptor)
        for client in self._clients.values():
            if client.stuck_topic in stuck:
                client.paused_until_ms = now_ms + self._topic_pauses_ms[client.stuck_topic]

    def schedule_retry(self) -> None:
        """Set the timer to the time at which the first pause ends."""
        ends_ms = [client.paused_until_ms for client in self._clients.values()]  # 0 = after _ROOM_RETRY_MS
        self._schedule(min(ends_ms) if all(ends_ms) else steady_ms() + _ROOM_RETRY_MS)

    def retry_soon(self) -> None:
        """Retry all connections now, because quotas may have changed."""
        for client in self._clients.values():
            client.paused_until_ms = min(client.paused_until_ms, 1)  # 1 is in the past; 0 (see `add`) stays 0
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
