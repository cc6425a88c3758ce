"""Accumulation in the dispatcher: records wait until their pending batch reaches a limit; then their queue sends them.

PartitionKey messages of per-topic batching have a pending batch for each topic, all combined topics share one, and
other messages do not wait.  A pending batch decides only *when* its records become ready.  A record batch then takes as
many ready records as fit, so record batches grow while responses are slow.

Inputs publish runs on common ticks, each input in one frame.  So the combined batch is also complete if no further
frame is expected before it is due (`_TickFrames`).  Then one wake-up serves both the last frame and the request.

State is indexed by a topic's entry in the topic table, so the next topic with that entry replaces it.  This bounds
memory while topics come and go.  A topic with accumulated records keeps its entry.
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
"""The key of the batch of all combined topics; other batches have their topic's table index, which starts at 1."""

_COUNTERS: Final = {
    BatchingKind.COMBINED: (Counter.CombinedTopicsBatchAnyPartition, Counter.CombinedTopicsBatchPartitionKey),
    BatchingKind.PER_TOPIC: (None, Counter.PerTopicBatchPartitionKey),
    BatchingKind.NONE: (Counter.NoBatchAnyPartition, Counter.NoBatchPartitionKey),
}
"""Counters for records without and with a partition key; None for records that the router batches and counts."""


class _TopicState(NamedTuple):
    number: int
    batch: PendingBatch | None
    """None if the topic's records do not wait."""
    counts: list[int]
    """The counts of its batching kind, which all topics of that kind share."""


class _TickFrames:
    """Counts the frames that add to the combined batch between two ticks, one from each input with messages.

    As many frames are expected as in the interval before.  A frame beyond them makes a separate batch, and is expected
    from then on.
    """

    def __init__(self, linger: int) -> None:
        self._linger_ms = max(1, linger)
        self._tick = self._seen = self._expected = 0

    def is_last(self, due_ms: int, now_ms: int) -> bool:
        """Count a frame; return True if no other frame is expected before `due_ms`."""
        next_ms = tick_after(now_ms + LEEWAY_MS, self._linger_ms)  # the inputs publish that much before a tick
        tick = next_ms // self._linger_ms
        if tick != self._tick:
            self._tick, self._expected, self._seen = tick, self._seen, 0
        self._seen += 1
        return self._seen >= self._expected and due_ms <= next_ms - LEEWAY_MS


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
        """Records without and with a partition key since the last update of the counters."""
        self._unbatched = _TopicState(0, None, self._counts[BatchingKind.NONE])
        self._topics: dict[int, _TopicState] = {}
        """By table index."""
        self._batches: dict[int, PendingBatch] = {}
        self._frames = _TickFrames(0)
        self._due_ms: int | None = None
        self._is_due_known = True
        """False if `_due_ms` may differ from the earliest time at which a batch is due."""
        self.draining = False
        """True if batching is disabled, because the daemon stops."""

    def apply_config(self, rule_of: Callable[[int], TopicBatching]) -> list[Segment]:
        """Replace the rules, and return all accumulated records."""
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
            topic.counts[header.flags & FLAG_PARTITION_KEY] += segment.records  # index 0 or 1
            if topic.batch is None or self.draining:
                ready.append(segment)
            else:
                ready += topic.batch.add_whole(segment, header.arrived_ms, now_ms)
        if any(self._counts[BatchingKind.COMBINED]):  # this frame has records of combined topics
            ready += self._flush_after_last_frame(now_ms)
        self._add_to_counters()
        self._is_due_known = False
        return ready

    def _flush_after_last_frame(self, now_ms: int) -> list[Segment]:
        """Empty the combined batch if the frame that has just added to it is the last before the batch is due."""
        batch = self._batches.get(_COMBINED)
        if batch is None or batch.due_ms is None or not self._frames.is_last(batch.due_ms, now_ms):
            return []
        return batch.flush()

    def _add_to_counters(self) -> None:
        for kind, counts in self._counts.items():
            for has_key, counter in enumerate(_COUNTERS[kind]):
                if counts[has_key] and counter is not None:
                    self._row.add(counter, counts[has_key])
                counts[has_key] = 0

    def _create_state(self, number: int) -> _TopicState:
        try:
            rule = self._rule_of(number)
        except KeyError:  # a late frame names a removed topic, which has no records left
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
        """Empty a topic's batch and return its records, for a combined topic those of all combined topics."""
        topic = self._topics.get(number % self._table_size)
        if topic is None or topic.number != number or topic.batch is None:
            return []
        self._is_due_known = False
        return topic.batch.flush()

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a batch is due; None without one."""
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
