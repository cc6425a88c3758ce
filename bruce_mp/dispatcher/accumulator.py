"""Accumulation in the dispatcher: records wait in a *pending batch* until it reaches a limit.

The records of a complete pending batch become *ready*: the dispatcher appends them to the queue of their partition.  A
pending batch decides only *when* its records become ready.  A record batch takes as many ready records of its partition
as fit, so record batches grow while the responses of the broker are slow.

With per-topic batching, each topic has its own pending batch for messages with a partition key; the router accumulates
the messages without one.  All topics with combined batching share one pending batch.  All other messages are ready at
once.

Inputs hand over their messages at common *ticks*, the multiples of the linger time, each input as one frame.  If the
combined batch is due before the next tick, it is complete with the last frame of a tick (`_TickFrames`).  The
dispatcher then sends it at once, so it wakes only once to process the last frame and to send the request.

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
"""The key of the pending batch of all combined topics.  The key of another batch is the table index of its topic, which
is at least 1."""

_COUNTERS: Final = {
    BatchingKind.COMBINED: (Counter.CombinedTopicsBatchAnyPartition, Counter.CombinedTopicsBatchPartitionKey),
    BatchingKind.PER_TOPIC: (None, Counter.PerTopicBatchPartitionKey),
    BatchingKind.NONE: (Counter.NoBatchAnyPartition, Counter.NoBatchPartitionKey),
}
"""The counters for records without and with a partition key; None if the router accumulates and counts the records."""


class _TopicState(NamedTuple):
    number: int
    batch: PendingBatch | None
    """None if the topic's records do not wait."""
    counts: list[int]
    """The counts of records without and with a partition key, which all topics with the same batching kind share."""


class _TickFrames:
    """Counts the frames that add to the combined batch between two ticks: one frame of each input with messages.

    The number of frames between the previous two ticks is the number expected now.  An additional frame arrives after
    the batch was sent, so its records form another batch; after the next tick, one frame more is expected.
    """

    def __init__(self, linger: int) -> None:
        self._linger_ms = max(1, linger)
        """The time between two ticks."""
        self._tick = self._seen_count = self._expected_count = 0

    def count_frame(self, due_ms: int, now_ms: int) -> bool:
        """Count a frame; return True if no other frame is expected before `due_ms`."""
        next_tick_ms = tick_after(now_ms + LEEWAY_MS, self._linger_ms)  # inputs hand over `LEEWAY_MS` before a tick
        tick = next_tick_ms // self._linger_ms
        if tick != self._tick:
            self._tick, self._expected_count, self._seen_count = tick, self._seen_count, 0
        self._seen_count += 1
        return self._seen_count >= self._expected_count and due_ms <= next_tick_ms - LEEWAY_MS


class Accumulator:
    """The batches that one dispatcher accumulates.  Times are in ms on a steady clock.

    `rule_of` returns the batching rule of a topic by its number, and raises KeyError for a removed topic.
    """

    def __init__(self, slab: Slab, row: ProcessRow, rule_of: Callable[[int], TopicBatching]) -> None:
        self._slab = slab
        self._row = row
        self._table_size = slab.geometry.topics
        self._rule_of = rule_of
        self._counts = {kind: [0, 0] for kind in BatchingKind}
        """The numbers of records without and with a partition key since the last update of the counters."""
        self._unbatched = _TopicState(0, None, self._counts[BatchingKind.NONE])
        self._topics: dict[int, _TopicState] = {}
        """By the index of the topic's entry in the topic table."""
        self._batches: dict[int, PendingBatch] = {}
        """The pending batches, by the same index or `_COMBINED`."""
        self._frames = _TickFrames(0)
        self._due_ms: int | None = None
        self._is_due_known = True
        """False if `_due_ms` must be computed again, because batches have changed."""
        self.is_draining = False
        """True if batching is disabled, because the daemon is about to stop."""

    def apply_config(self, rule_of: Callable[[int], TopicBatching]) -> list[Segment]:
        """Replace the rules; empty all batches and return their records."""
        accumulated = self.flush_all()
        self._rule_of = rule_of
        self._topics.clear()
        self._batches.clear()
        return accumulated

    def add(self, segments: Iterable[Segment], headers: Iterable[RunHeader | None], now_ms: int) -> list[Segment]:
        """Add segments with their headers, and return the segments that become ready, in order.

        A segment with a damaged header (None) is not counted and does not wait.
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
        if any(self._counts[BatchingKind.COMBINED]):  # some of the segments, all from one frame, are of combined topics
            ready += self._flush_after_last_frame(now_ms)
        self._add_to_counters()
        self._is_due_known = False
        return ready

    def _flush_after_last_frame(self, now_ms: int) -> list[Segment]:
        """Empty the combined batch if the frame that has just added to it is the last before the batch is due."""
        batch = self._batches.get(_COMBINED)
        if batch is None or batch.due_ms is None or not self._frames.count_frame(batch.due_ms, now_ms):
            return []
        return batch.flush()

    def _add_to_counters(self) -> None:
        """Add the counts of records to the counters, and reset the counts."""
        for kind, counts in self._counts.items():
            for has_key, counter in enumerate(_COUNTERS[kind]):
                if counts[has_key] and counter is not None:
                    self._row.add(counter, counts[has_key])
                counts[has_key] = 0

    def _create_state(self, number: int) -> _TopicState:
        try:
            rule = self._rule_of(number)
        except KeyError:  # the router has removed the topic, because its records are settled: they need no batch
            return self._unbatched
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
            self._frames = _TickFrames(linger_ms(rule))
        return self._batches[_COMBINED]

    def flush_topic(self, number: int) -> list[Segment]:
        """Empty a topic's batch and return the records; the batch of a combined topic has all combined topics."""
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
        """Empty the batches that are due, and return their records."""
        if self.due_ms is None or self.due_ms > now_ms:
            return []
        self._is_due_known = False
        due = [batch for batch in self._batches.values() if batch.due_ms is not None and batch.due_ms <= now_ms]
        return [segment for batch in due for segment in batch.flush()]

    def flush_all(self) -> list[Segment]:
        self._is_due_known = False
        return [segment for batch in self._batches.values() for segment in batch.flush()]
