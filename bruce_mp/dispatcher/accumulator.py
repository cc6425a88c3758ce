"""Accumulation in the dispatcher: records wait in a *pending batch* until it reaches a limit.

The records of a complete pending batch become *ready*: the dispatcher appends them to the queue of their partition.
Later, a record batch takes as many ready records of its partition as fit.  So record batches grow while the broker
responds slowly.

With per-topic batching, each topic has its own pending batch for messages with a partition key; the router accumulates
the messages without a key.  All topics with combined batching share one pending batch.  All other messages are ready at
once.

All inputs hand over messages at the same *ticks*, the multiples of the linger time; each input sends one frame.  If the
combined batch is due before the next tick, it is complete after the last frame of a tick (`_TickFrames`).  So the
dispatcher wakes only once to process the last frame and to send the request.

State is stored by the index of a topic's entry in the slab's topic table.  The next topic that gets the entry replaces
the state, which bounds memory while topics come and go.  A topic with accumulated records keeps its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BatchingKind
from bruce_mp.kernels.closed_runs import LEEWAY_MS, tick_after
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.pipeline.run_linger import linger_ms
from bruce_mp.slab.layout import FLAG_PARTITION_KEY
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.kernels import RunHeader
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Accumulator"]

_COMBINED: Final = 0
"""The key in `Accumulator._batches` of the pending batch of all combined topics; no topic has this table index."""

_COUNTERS: Final = {
    BatchingKind.COMBINED: (Counter.CombinedTopicsBatchAnyPartition, Counter.CombinedTopicsBatchPartitionKey),
    BatchingKind.PER_TOPIC: (None, Counter.PerTopicBatchPartitionKey),
    BatchingKind.NONE: (Counter.NoBatchAnyPartition, Counter.NoBatchPartitionKey),
}
"""(counter of records without a partition key, or None if the router counts these; counter of records with a key)."""


class _TopicState(NamedTuple):
    number: int
    batch: PendingBatch | None
    """None if the topic's records are ready at once."""
    counts: list[int]
    """The list in `Accumulator._counts` for the topic's batching kind."""


class _TickFrames:
    """Counts the frames that add to the combined batch between two ticks: one frame from each input with messages.

    As many frames are expected as came between the previous two ticks.  A frame more than expected arrives after the
    batch was sent, so its records form another batch.
    """

    def __init__(self, linger_time_ms: int) -> None:
        self._tick_interval_ms = max(1, linger_time_ms)
        self._tick = self._seen_count = self._expected_count = 0

    def count_frame(self, due_ms: int, now_ms: int) -> bool:
        """Count a frame; return True if no other frame is expected before `due_ms`."""
        # Inputs hand over messages `LEEWAY_MS` before a tick.
        next_tick_ms = tick_after(now_ms + LEEWAY_MS, self._tick_interval_ms)
        tick = next_tick_ms // self._tick_interval_ms
        if tick != self._tick:
            self._tick, self._expected_count, self._seen_count = tick, self._seen_count, 0
        self._seen_count += 1
        return self._seen_count >= self._expected_count and due_ms <= next_tick_ms - LEEWAY_MS


class Accumulator:
    """The batches that one dispatcher accumulates.  Times are in ms on a steady clock.

    `rule_of` returns the batching rule of a topic number; it raises KeyError for a removed topic.
    """

    def __init__(self, slab: Slab, row: ProcessRow, rule_of: Callable[[int], TopicBatching]) -> None:
        self._slab = slab
        self._row = row
        self._table_size = slab.geometry.topics
        self._rule_of = rule_of
        self._counts = {kind: [0, 0] for kind in BatchingKind}
        """By batching kind: [records without a partition key, records with a key] since the counters were updated."""
        self._unbatched_state = _TopicState(0, None, self._counts[BatchingKind.NONE])
        self._topics: dict[int, _TopicState] = {}
        """By the index of the topic's entry in the topic table."""
        self._batches: dict[int, PendingBatch] = {}
        """The pending batches, by the same index or `_COMBINED`."""
        self._tick_frames = _TickFrames(0)
        self._due_ms: int | None = None
        self._is_due_known = True
        """False if `_due_ms` must be computed again, because batches have changed."""
        self.is_draining = False
        """True if batching is disabled, because the daemon is about to stop."""

    def apply_config(self, rule_of: Callable[[int], TopicBatching]) -> list[Segment]:
        """Replace the batching rules; empty all pending batches and return their records."""
        accumulated = self.flush_all()
        self._rule_of = rule_of
        self._topics.clear()
        self._batches.clear()
        return accumulated

    def add(self, segments: Iterable[Segment], headers: Iterable[RunHeader | None], now_ms: int) -> list[Segment]:
        """Add segments with their headers, and return the segments that become ready, in order.

        A segment with a damaged header (None) becomes ready at once and is not counted.
        """
        ready: list[Segment] = []
        topics, table_size = self._topics, self._table_size
        for segment, header in zip(segments, headers, strict=True):
            if header is None:
                ready.append(segment)
                continue
            topic = topics.get(header.topic % table_size)
            if topic is None or topic.number != header.topic:
                topic = self._create_state(header.topic)
            topic.counts[header.flags & FLAG_PARTITION_KEY] += segment.records  # index 1 with a key, else 0
            if topic.batch is None or self.is_draining:
                ready.append(segment)
            else:
                ready += topic.batch.add_whole(segment, header.arrived_ms, now_ms)
        if any(self._counts[BatchingKind.COMBINED]):  # the frame has records of combined topics
            ready += self._flush_after_last_frame(now_ms)
        self._add_to_counters()
        self._is_due_known = False
        return ready

    def _flush_after_last_frame(self, now_ms: int) -> list[Segment]:
        """Empty the combined batch and return its records if no further frame is expected before the batch is due."""
        batch = self._batches.get(_COMBINED)
        if batch is None or batch.due_ms is None or not self._tick_frames.count_frame(batch.due_ms, now_ms):
            return []
        return batch.flush()

    def _add_to_counters(self) -> None:
        """Add `_counts` to the process row's counters, and reset `_counts`."""
        for kind, counts in self._counts.items():
            for has_key, counter in enumerate(_COUNTERS[kind]):
                if counts[has_key] and counter is not None:
                    self._row.add(counter, counts[has_key])
                counts[has_key] = 0

    def _create_state(self, number: int) -> _TopicState:
        try:
            rule = self._rule_of(number)
        except KeyError:  # the router removes a topic only after its records are settled, so they need no batch
            return self._unbatched_state
        index = number % self._table_size
        self._batches.pop(index, None)
        topic = self._topics[index] = _TopicState(number, self._batch_for(index, rule), self._counts[rule.kind])
        return topic

    def _batch_for(self, index: int, rule: TopicBatching) -> PendingBatch | None:
        if rule.kind is BatchingKind.NONE:
            return None
        if rule.kind is not BatchingKind.COMBINED:
            return self._batches.setdefault(index, PendingBatch(self._slab, rule.limits))
        if _COMBINED not in self._batches:
            self._batches[_COMBINED] = PendingBatch(self._slab, rule.limits)
            self._tick_frames = _TickFrames(linger_ms(rule))
        return self._batches[_COMBINED]

    def flush_topic(self, number: int) -> list[Segment]:
        """Empty the topic's pending batch, which may be the combined batch, and return all its records."""
        topic = self._topics.get(number % self._table_size)
        if topic is None or topic.number != number or topic.batch is None:
            return []
        self._is_due_known = False
        return topic.batch.flush()

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a batch is due; None if no records wait."""
        if not self._is_due_known:
            due = (batch.due_ms for batch in self._batches.values())
            self._due_ms = min((due_ms for due_ms in due if due_ms is not None), default=None)
            self._is_due_known = True
        return self._due_ms

    def flush_due(self, now_ms: int) -> list[Segment]:
        if self.due_ms is None or self.due_ms > now_ms:
            return []
        self._is_due_known = False
        due = [batch for batch in self._batches.values() if batch.due_ms is not None and batch.due_ms <= now_ms]
        return [segment for batch in due for segment in batch.flush()]

    def flush_all(self) -> list[Segment]:
        self._is_due_known = False
        return [segment for batch in self._batches.values() for segment in batch.flush()]
