"""Delivered record batches: their settlement, and the sums of their messages by topic."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.slab.runs import arrived_ms, segment_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import TopicTable

__all__ = ["Deliveries", "DeliveryCounters", "TopicSums"]

_OTHER_TOPICS: Final = 0  # not the number of any topic


class DeliveryCounters(NamedTuple):
    """The numbers of counters in a process row.

    `messages` counts delivered messages, `first_bucket` those in the first bucket of waiting times (other buckets
    follow), and `waited_ms` is the sum of all waiting times.
    """

    messages: int
    first_bucket: int
    waited_ms: int


TopicSums = tuple[bytes, int, int, dict[int, int]]
"""A topic, and sums over its delivered messages: their number, their payload in bytes, and the number of messages in
each bucket of waiting times that is not empty, by the bucket's number.  A plain tuple takes less time to create."""


class Deliveries:
    """Settles record batches as delivered in a process row, and sums their messages by topic until `clear`.

    The waiting time of a message begins when its run is opened.  It is 0 if the clock shows an earlier time, as it may
    after a reboot.  Bucket i is for waiting times up to `bounds_ms[i]`, the last bucket for all longer ones.

    Once there are `max_topics` topics, all further topics share one sum, under an empty name.  `max_segments` is the
    largest number of segments in one transaction.
    """

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        topics: TopicTable,
        bounds_ms: Sequence[int],
        counters: DeliveryCounters,
        *,
        max_topics: int,
        max_segments: int = MAX_SETTLED_SEGMENTS,
    ) -> None:
        self._slab = slab
        self._row = row
        self._topics = topics
        self._bounds_ms = bounds_ms
        self._counters = counters
        self._max_topics = max_topics
        self._max_segments = max_segments
        self._sums: dict[int, TopicSums] = {}
        """The sums by topic number."""

    def __len__(self) -> int:
        return len(self._sums)

    def settle(self, batches: Sequence[BuiltBatch], now_ms: int) -> int:
        """Settle the first batches in one transaction, as many as it can have, and return their number.

        `now_ms` is the steady time.  The call also clears the refusals of the batches' topics, because a broker accepts
        them again.  Raises SlabError, and changes nothing, if a segment of these batches is damaged.
        """
        if not batches:
            return 0
        settled = self._first_batches(batches)
        waits = [
            (batch.topic, segment, self._wait_ms(segment, now_ms)) for batch in settled for segment in batch.segments
        ]
        # Read the names before the batches are settled: after that, the router may remove the topics.
        for topic, _, _ in waits:
            self._ensure_sums(topic)
        self._topics.clear_refusals([topic for topic, _, _ in waits])
        delays: dict[int, int] = {}
        for topic, segment, wait_ms in waits:
            bucket = bisect_left(self._bounds_ms, wait_ms)
            delays[bucket] = delays.get(bucket, 0) + segment.records
            self._add(topic, segment, bucket)
        buckets = {self._counters.first_bucket + bucket: delays[bucket] for bucket in sorted(delays)}
        waited_ms = sum(wait_ms * segment.records for _, segment, wait_ms in waits)
        increments = {self._counters.messages: sum(delays.values()), **buckets, self._counters.waited_ms: waited_ms}
        self._row.settle([segment for _, segment, _ in waits], RunState.DELIVERED, 0, increments)
        return len(settled)

    def _first_batches(self, batches: Sequence[BuiltBatch]) -> Sequence[BuiltBatch]:
        """Return the first batches, as many as one transaction can have; no single batch has more segments."""
        room = self._max_segments
        for index, batch in enumerate(batches):
            room -= len(batch.segments)
            if room < 0 and index:
                return batches[:index]
        return batches

    def _wait_ms(self, segment: Segment, now_ms: int) -> int:
        segment_words(self._slab, segment)  # raises SlabError for a damaged segment
        return max(0, now_ms - arrived_ms(self._slab, segment))

    def _ensure_sums(self, topic: int) -> None:
        if topic in self._sums:
            return
        if len(self._sums) < self._max_topics:
            self._sums[topic] = (self._topics.name_of(topic), 0, 0, {})
        else:
            self._sums.setdefault(_OTHER_TOPICS, (b"", 0, 0, {}))

    def _add(self, topic: int, segment: Segment, bucket: int) -> None:
        key = topic if topic in self._sums else _OTHER_TOPICS
        name, message_count, size, delays = self._sums[key]
        delays[bucket] = delays.get(bucket, 0) + segment.records
        self._sums[key] = (name, message_count + segment.records, size + segment.payload, delays)

    def sums(self) -> list[TopicSums]:
        return list(self._sums.values())

    def clear(self) -> None:
        self._sums.clear()
