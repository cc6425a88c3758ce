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

The next topic that gets an entry in the slab's topic table replaces the state of the topic that had the entry, which
bounds memory while topics come and go.  A topic with accumulated records keeps its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import BatchingKind
from bruce_mp.kernels.closed_runs import LEEWAY_MS, tick_after
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.pipeline.run_linger import linger_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["Accumulator"]

_COMBINED: Final = 0
"""The key in `Accumulator._batches` of the pending batch of all combined topics; no topic has this table index."""

_COUNTERS: Final = {
    BatchingKind.COMBINED: (Counter.CombinedTopicsBatchAnyPartition, Counter.CombinedTopicsBatchPartitionKey),
    BatchingKind.PER_TOPIC: (None, Counter.PerTopicBatchPartitionKey),
    BatchingKind.NONE: (Counter.NoBatchAnyPartition, Counter.NoBatchPartitionKey),
}
"""(counter of records without a partition key, or None if the router counts these; counter of records with a key)."""


_TopicState = tuple["PendingBatch[ClaimedRun] | None", list[int]]
"""The batch of a topic, None if its records are ready at once, and the list in `Accumulator._counts` for its batching
kind."""


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
        self._combined_counts = self._counts[BatchingKind.COMBINED]
        self._counters = [(self._counts[kind], counters) for kind, counters in _COUNTERS.items()]
        self._unbatched_state: _TopicState = (None, self._counts[BatchingKind.NONE])
        self._topics: dict[int, _TopicState] = {}
        """By topic number."""
        self._numbers: dict[int, int] = {}
        """The topic number in `_topics` for the index of a topic's entry in the topic table."""
        self._batches: dict[int, PendingBatch[ClaimedRun]] = {}
        """The pending batches, by the same index or `_COMBINED`."""
        self._tick_frames = _TickFrames(0)
        self._due_ms: int | None = None
        self._is_due_known = True
        """False if `_due_ms` must be computed again, because batches have changed."""
        self.is_draining = False
        """True if batching is disabled, because the daemon is about to stop."""

    def apply_config(self, rule_of: Callable[[int], TopicBatching]) -> list[ClaimedRun]:
        """Replace the batching rules; empty all pending batches and return their runs."""
        accumulated = self.flush_all()
        self._rule_of = rule_of
        self._topics.clear()
        self._batches.clear()
        return accumulated

    def add(self, runs: Iterable[ClaimedRun], now_ms: int) -> list[ClaimedRun]:
        """Add the runs of a frame, and return the runs that become ready, in order."""
        ready: list[ClaimedRun] = []
        topics = self._topics
        batch: PendingBatch[ClaimedRun] | None = None
        group: list[ClaimedRun] = []  # successive runs for the same batch, mostly the whole frame
        for run in runs:
            _, topic, _, has_key, record_count, _, _ = run
            topic_batch, counts = topics.get(topic) or self._create_state(topic)
            counts[has_key] += record_count
            if topic_batch is not batch:
                ready += self._add_to_batch(batch, group, now_ms)
                batch, group = topic_batch, []
            group.append(run)
        ready += self._add_to_batch(batch, group, now_ms)
        if any(self._combined_counts):  # the frame has records of combined topics
            ready += self._flush_after_last_frame(now_ms)
        self._add_to_counters()
        self._is_due_known = False
        return ready

    def _add_to_batch(
        self, batch: PendingBatch[ClaimedRun] | None, runs: list[ClaimedRun], now_ms: int
    ) -> list[ClaimedRun]:
        """Add runs to a batch, and return those that become ready: all runs if the batch is None."""
        return runs if batch is None or self.is_draining or not runs else batch.add_whole(runs, now_ms)

    def _flush_after_last_frame(self, now_ms: int) -> list[ClaimedRun]:
        """Empty the combined batch and return its runs if no further frame is expected before the batch is due."""
        batch = self._batches.get(_COMBINED)
        if batch is None or batch.due_ms is None or not self._tick_frames.count_frame(batch.due_ms, now_ms):
            return []
        return batch.flush()

    def _add_to_counters(self) -> None:
        """Add `_counts` to the process row's counters, and reset `_counts`."""
        for counts, (counter_without_key, counter_with_key) in self._counters:
            if counts[0] and counter_without_key is not None:
                self._row.add(counter_without_key, counts[0])
            if counts[1]:
                self._row.add(counter_with_key, counts[1])
            counts[:] = 0, 0

    def _create_state(self, number: int) -> _TopicState:
        try:
            rule = self._rule_of(number)
        except KeyError:  # the router removes a topic only after its records are settled, so they need no batch
            return self._unbatched_state
        index = number % self._table_size
        self._topics.pop(self._numbers.get(index, 0), None)
        self._batches.pop(index, None)
        self._numbers[index] = number
        state = self._topics[number] = (self._batch_for(index, rule), self._counts[rule.kind])
        return state

    def _batch_for(self, index: int, rule: TopicBatching) -> PendingBatch[ClaimedRun] | None:
        if rule.kind is BatchingKind.NONE:
            return None
        if rule.kind is not BatchingKind.COMBINED:
            return self._batches.setdefault(index, PendingBatch(self._slab, rule.limits))
        if _COMBINED not in self._batches:
            self._batches[_COMBINED] = PendingBatch(self._slab, rule.limits)
            self._tick_frames = _TickFrames(linger_ms(rule))
        return self._batches[_COMBINED]

    def flush_topic(self, number: int) -> list[ClaimedRun]:
        """Empty the topic's pending batch, which may be the combined batch, and return all its runs."""
        batch, _ = self._topics.get(number, self._unbatched_state)
        if batch is None:
            return []
        self._is_due_known = False
        return batch.flush()

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a batch is due; None if no records wait."""
        if not self._is_due_known:
            due = [batch.due_ms for batch in self._batches.values() if batch.due_ms is not None]
            self._due_ms = min(due) if due else None
            self._is_due_known = True
        return self._due_ms

    def flush_due(self, now_ms: int) -> list[ClaimedRun]:
        due_ms = self.due_ms
        if due_ms is None or due_ms > now_ms:
            return []
        self._is_due_known = False
        due = [batch for batch in self._batches.values() if batch.due_ms is not None and batch.due_ms <= now_ms]
        return [run for batch in due for run in batch.flush()]

    def flush_all(self) -> list[ClaimedRun]:
        self._is_due_known = False
        return [run for batch in self._batches.values() for run in batch.flush()]
