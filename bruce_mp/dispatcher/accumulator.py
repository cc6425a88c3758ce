"""Accumulation in the dispatcher: records wait for a batch limit before their partition's queue may send them.

PartitionKey messages of per-topic batching have a batch for each topic, all combined topics share one batch, and other
messages do not wait.  A full batch decides only *when* its records become ready.  A record batch then takes as many
ready records as fit, so batches grow while responses are slow.

The state of a topic is kept by its place in the topic table, so the next topic at that place replaces it.  This bounds
memory while topics come and go.  A topic with accumulated records keeps its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BatchingKind
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.slab.layout import FLAG_PARTITION_KEY
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.kernels import RunHead
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Accumulator"]

_COMBINED: Final = 0
"""The key of the batch of all combined topics; topics' own batches have the topic's place, and there is no place 0."""

_COUNTED: Final = {
    BatchingKind.COMBINED: (Counter.CombinedTopicsBatchAnyPartition, Counter.CombinedTopicsBatchPartitionKey),
    BatchingKind.PER_TOPIC: (None, Counter.PerTopicBatchPartitionKey),
    BatchingKind.NONE: (Counter.NoBatchAnyPartition, Counter.NoBatchPartitionKey),
}
"""Counters for records without and with a partition key; the router counts the records that it batches."""


class _TopicBatch(NamedTuple):
    """A topic's batch, None if its records do not wait, and in `tally` its records without and with a key."""

    number: int
    batch: PendingBatch | None
    tally: list[int]


class Accumulator:
    """The accumulating batches of one dispatcher, with counters.  Times are in ms on a steady clock.

    `rule_of` returns the rule of a topic by its number, and raises KeyError for a removed topic.
    """

    def __init__(self, slab: Slab, row: ProcessRow, rule_of: Callable[[int], TopicBatching]) -> None:
        self._slab = slab
        self._row = row
        self._places = slab.geometry.topics
        self._rule_of = rule_of
        self._tallies = {kind: [0, 0] for kind in BatchingKind}
        self._nobody = _TopicBatch(0, None, self._tallies[BatchingKind.NONE])
        self._topics: dict[int, _TopicBatch] = {}
        """By place."""
        self._builders: dict[int, PendingBatch] = {}
        self.draining = False
        """When set, no record waits."""

    def apply_config(self, rule_of: Callable[[int], TopicBatching]) -> list[Segment]:
        """Replace the rules, and return the records accumulated by the earlier ones."""
        waited = self.flush()
        self._rule_of = rule_of
        self._topics.clear()
        self._builders.clear()
        return waited

    def add(self, segments: Iterable[Segment], heads: Iterable[RunHead | None], now_ms: int) -> list[Segment]:
        """Add records of any topics, and return those that become ready, in order.

        `heads` belong to the segments; a segment without a sound head is not counted and does not wait.
        """
        ready: list[Segment] = []
        for segment, head in zip(segments, heads, strict=True):
            if head is None:
                ready.append(segment)
                continue
            topic = self._topic(head.topic)
            topic.tally[head.flags & FLAG_PARTITION_KEY] += segment.records
            if topic.batch is None or self.draining:
                ready.append(segment)
            else:
                ready += topic.batch.add_whole(segment, head.arrived_ms, now_ms)
        self._count()
        return ready

    def _count(self) -> None:
        for kind, tally in self._tallies.items():
            for at, counter in enumerate(_COUNTED[kind]):
                if tally[at] and counter is not None:
                    self._row.add(counter, tally[at])
                tally[at] = 0

    def _topic(self, number: int) -> _TopicBatch:
        topic = self._topics.get(number % self._places)
        return topic if topic is not None and topic.number == number else self._learn(number)

    def _learn(self, number: int) -> _TopicBatch:
        """Create a topic's state at its place; a late frame may name a removed topic, whose records are settled."""
        try:
            rule = self._rule_of(number)
        except KeyError:
            return self._nobody
        place = number % self._places
        self._builders.pop(place, None)
        topic = self._topics[place] = _TopicBatch(number, self._batch(place, rule), self._tallies[rule.kind])
        return topic

    def _batch(self, place: int, rule: TopicBatching) -> PendingBatch | None:
        if rule.kind is BatchingKind.NONE:
            return None
        key = _COMBINED if rule.kind is BatchingKind.COMBINED else place
        return self._builders.setdefault(key, PendingBatch(self._slab, rule.limits))

    def flush_of(self, number: int) -> list[Segment]:
        """Return the records of a topic's batch; none before its first record."""
        topic = self._topics.get(number % self._places)
        if topic is None or topic.number != number or topic.batch is None:
            return []
        return topic.batch.flush()

    @property
    def due_ms(self) -> int | None:
        """The time at which the next batch is due."""
        return min((builder.due_ms for builder in self._builders.values() if builder.due_ms is not None), default=None)

    def flush_due(self, now_ms: int) -> list[Segment]:
        """Return the records of all due batches."""
        due = [
            builder for builder in self._builders.values() if builder.due_ms is not None and builder.due_ms <= now_ms
        ]
        return [segment for builder in due for segment in builder.flush()]

    def flush(self) -> list[Segment]:
        """Return all accumulated records."""
        return [segment for builder in self._builders.values() for segment in builder.flush()]
