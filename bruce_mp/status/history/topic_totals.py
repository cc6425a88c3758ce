"""Totals by topic for `/metrics`: messages received, delivered and discarded, and bytes delivered.

The event loop adds the events of other processes, and HTTP threads read. Inputs do not count by topic: the received
messages are the settled ones, which the events report, plus the held ones, which `/held` counts. The totals begin with
the status process.

A topic with messages keeps its series. If topics moved to `(other)`, the sum of all topics without a series, and back
again, that sum would fall, and Prometheus would take each fall for a restart. Only topics of Kafka get a series,
because clients may invent names.
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
"""Key of the sum of all topics without a series; in reports, the name for the topics beyond `traffic.MAX_TOPICS`."""
_IDLE_MS: Final = HOUR_MS
"""Time without a message after which a topic gives its series to another one, if all are in use."""


class TopicTotal(msgspec.Struct):
    """Totals of a topic. `size` sums the bytes of delivered keys, values and headers.

    `active_ms` is the last time at which an event or a count of held messages named the topic.
    """

    received: int = 0
    delivered: int = 0
    discarded: int = 0
    size: int = 0
    active_ms: int = 0

    @property
    def settled(self) -> int:
        return self.delivered + self.discarded

    def since(self, before: TopicTotal | None) -> TopicTotal:
        """Return the messages since `before`; a larger `before` is of an earlier series and is ignored."""
        if before is None or before.received > self.received or before.settled > self.settled:
            return self
        return TopicTotal(
            self.received - before.received, self.delivered - before.delivered, self.discarded - before.discarded
        )


class TopicTotals:
    """Totals of at most `limit` topics, and one sum of all others. Times are in ms on a monotonic clock."""

    def __init__(self, slab: Slab, limit: int) -> None:
        self._topic_table = TopicTable(slab)
        self._limit = limit
        self._lock = Lock()
        self._topics: dict[bytes, TopicTotal] = {}
        self._other = TopicTotal()
        self._next_idle_ms = 0
        """Time before which no topic becomes idle, so that a full table is not searched for each event."""

    @property
    def limit(self) -> int:
        """Return the number of topics with separate series."""
        return self._limit

    def apply_limit(self, limit: int) -> None:
        """Change the number of topics. Topics over a smaller limit lose their series, the longest idle first."""
        with self._lock:
            self._limit = limit
            self._next_idle_ms = 0
            by_activity = sorted(self._topics, key=lambda name: -self._topics[name].active_ms)
            for name in by_activity[limit:]:
                del self._topics[name]

    def record(self, events: Iterable[TrafficEvent | DiscardEvent], now_ms: int) -> None:
        with self._lock:
            for event in events:
                if isinstance(event, DiscardEvent):
                    self._total_of(event.topic, now_ms).discarded += event.count
                elif event.messages:
                    total = self._total_of(event.topic, now_ms)
                    total.delivered += event.messages
                    total.size += event.size

    def _total_of(self, name: bytes, now_ms: int) -> TopicTotal:
        """Return the topic's totals, and mark them as active. A new topic of Kafka gets a series if one is free."""
        total = self._topics.get(name)
        if total is None:
            if not self._is_known(name) or not self._has_room(now_ms):
                return self._other
            total = self._topics[name] = TopicTotal()
        total.active_ms = now_ms
        return total

    def _is_known(self, name: bytes) -> bool:
        if name != _OTHER and not self._topic_table.number_of(name):
            self._topic_table.refresh()
        return self._topic_table.number_of(name) != 0

    def _has_room(self, now_ms: int) -> bool:
        if len(self._topics) >= self._limit and now_ms >= self._next_idle_ms:
            idle = [name for name, total in self._topics.items() if now_ms - total.active_ms > _IDLE_MS]
            for name in idle:
                del self._topics[name]
            self._next_idle_ms = _IDLE_MS + min((total.active_ms for total in self._topics.values()), default=now_ms)
        return len(self._topics) < self._limit

    def settled(self) -> dict[bytes, int]:
        """Return the settled messages of each topic, to pass to `observe_held`."""
        with self._lock:
            return {name: total.settled for name, total in self._items()}

    def observe_held(self, settled: Mapping[bytes, int], held: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Derive the received messages from a count of the held ones.

        The caller must read `settled` before it counts. A message that is settled in between is then in neither, until
        the next count, but no message is in both. So the received messages never have to fall.
        """
        with self._lock:
            sums = dict(settled)
            for name, messages in held:
                self._total_of(name, now_ms)  # gives the topic a series if one is free
                key = name if name in self._topics else _OTHER
                sums[key] = sums.get(key, 0) + messages
            for name, total in self._items():
                total.received = max(total.received, sums.get(name, 0))

    def _items(self) -> list[tuple[bytes, TopicTotal]]:
        return [*self._topics.items(), (_OTHER, self._other)]

    def read(self) -> tuple[dict[bytes, TopicTotal], TopicTotal]:
        """Return the totals of each topic, and those of all others. A settled message counts as received."""
        with self._lock:
            totals = {name: _coherent(total) for name, total in self._topics.items()}
            return totals, _coherent(self._other)


def _coherent(total: TopicTotal) -> TopicTotal:
    """Return the totals with at least as many received messages as settled ones; the latter are counted sooner."""
    return msgspec.structs.replace(total, received=max(total.received, total.settled))
