"""Totals by topic for `/metrics`: messages received, delivered and discarded, and bytes delivered.

The event loop adds the events of other processes, and HTTP threads read the totals. No process counts the received
messages by topic, so their number is computed: the settled messages, which the events report, plus the held messages,
which `/held` counts. The totals begin with the status process.

A limited number of topics have a separate series on `/metrics`; the series `(other)` is the sum of all other topics. A
topic keeps its series while messages arrive for it: if it moved to `(other)` and back, the sum in `(other)` would fall,
and Prometheus would take each fall for a restart. Only topics that exist in Kafka get a series, because clients may
invent names.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.history.windows import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.traffic import TrafficEvent

__all__ = ["TopicTotal", "TopicTotals"]

_OTHER: Final = b""
"""Key of the sum of all topics without a series. Events use the same key for the topics beyond `traffic.MAX_TOPICS`."""
_IDLE_MS: Final = HOUR_MS
"""Time without a message after which a topic is idle: it loses its series if no series is free for another topic."""


class TopicTotal(msgspec.Struct):
    """Totals of a topic. `delivered_bytes` is the size of the keys, values and headers of the delivered messages.

    `active_ms` is the time of the last event or count of held messages that named the topic.
    """

    received: int = 0
    delivered: int = 0
    discarded: int = 0
    delivered_bytes: int = 0
    active_ms: int = 0

    @property
    def settled(self) -> int:
        return self.delivered + self.discarded

    def increase_since(self, before: TopicTotal | None) -> TopicTotal:
        """Return the messages since the reading `before`.

        If `before` is None or larger than the present totals, the topic has got a new series since, so all its totals
        are new.
        """
        if before is None or before.received > self.received or before.settled > self.settled:
            return self
        return TopicTotal(
            self.received - before.received, self.delivered - before.delivered, self.discarded - before.discarded
        )


class TopicTotals:
    """Totals of at most `limit` topics, and the sum of all other topics. Times are in ms on a monotonic clock."""

    def __init__(self, slab: Slab, limit: int) -> None:
        self._topic_table = TopicTable(slab)
        self._limit = limit
        self._lock = Lock()
        self._topics: dict[bytes, TopicTotal] = {}
        self._other = TopicTotal()
        self._next_idle_ms = 0
        """The earliest time at which a topic may be idle; until then, no search for idle topics is needed."""

    @property
    def limit(self) -> int:
        """Return the number of topics with separate series."""
        return self._limit

    def apply_limit(self, limit: int) -> None:
        """Change the limit. If there are more topics, the topics without a message for longest lose their series."""
        with self._lock:
            self._limit = limit
            self._next_idle_ms = 0
            latest_active_first = sorted(self._topics, key=lambda name: -self._topics[name].active_ms)
            for name in latest_active_first[limit:]:
                del self._topics[name]

    def record(self, events: Iterable[TrafficEvent | DiscardEvent], now_ms: int) -> None:
        with self._lock:
            for event in events:
                if isinstance(event, DiscardEvent):
                    self._total_of(event.topic, now_ms).discarded += event.count
                elif event.message_count:
                    total = self._total_of(event.topic, now_ms)
                    total.delivered += event.message_count
                    total.delivered_bytes += event.byte_count

    def _total_of(self, name: bytes, now_ms: int) -> TopicTotal:
        """Return the totals to which to add the topic's messages, and mark the topic as active.

        If the topic has no series, give it one if it exists in Kafka and a series is free.
        """
        total = self._topics.get(name)
        if total is None:
            if not self._exists_in_kafka(name) or not self._make_room(now_ms):
                return self._other
            total = self._topics[name] = TopicTotal()
        total.active_ms = now_ms
        return total

    def _exists_in_kafka(self, name: bytes) -> bool:
        if name != _OTHER and not self._topic_table.number_of(name):
            self._topic_table.refresh()
        return self._topic_table.number_of(name) != 0

    def _make_room(self, now_ms: int) -> bool:
        """Remove the idle topics if no series is free; return False if still none is free."""
        if len(self._topics) >= self._limit and now_ms >= self._next_idle_ms:
            idle = [name for name, total in self._topics.items() if now_ms - total.active_ms > _IDLE_MS]
            for name in idle:
                del self._topics[name]
            self._next_idle_ms = _IDLE_MS + min((total.active_ms for total in self._topics.values()), default=now_ms)
        return len(self._topics) < self._limit

    def settled_by_topic(self) -> dict[bytes, int]:
        """Return the number of settled messages of each topic, to pass to `observe_held`."""
        with self._lock:
            return {name: total.settled for name, total in self._items()}

    def observe_held(self, settled: Mapping[bytes, int], held: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Set the received messages of each topic to the sum of `settled` and `held`.

        `settled` comes from `settled_by_topic`, which the caller must call before it counts the held messages. If a
        message is settled between these two calls, it is in neither until the next count; but no message is in both.
        So the sum is never too large. If it were, it could not be corrected, because a counter must not fall.
        """
        with self._lock:
            received = dict(settled)
            for name, message_count in held:
                self._total_of(name, now_ms)  # gives the topic a series if one is free
                key = name if name in self._topics else _OTHER
                received[key] = received.get(key, 0) + message_count
            for name, total in self._items():
                total.received = max(total.received, received.get(name, 0))

    def _items(self) -> list[tuple[bytes, TopicTotal]]:
        return [*self._topics.items(), (_OTHER, self._other)]

    def read(self) -> tuple[dict[bytes, TopicTotal], TopicTotal]:
        """Return the totals of each topic with a series, and the sum of all other topics."""
        with self._lock:
            totals = {name: _coherent(total) for name, total in self._topics.items()}
            return totals, _coherent(self._other)


def _coherent(total: TopicTotal) -> TopicTotal:
    """Return the totals with `received` raised to the settled messages, which are counted more often."""
    return msgspec.structs.replace(total, received=max(total.received, total.settled))
