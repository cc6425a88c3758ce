"""Batching in a dispatcher while topics come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.sections import BatchLimits
from bruce_mp.config.topics import UNBATCHED, BatchingKind, TopicBatching
from bruce_mp.dispatcher.accumulator import Accumulator
from bruce_mp.kernels import ProcessRow
from bruce_mp.kernels.closed_runs import LEEWAY_MS
from bruce_mp.pipeline.run_linger import linger_ms
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.counters import Counter
from support.put_records import as_claimed, put_records
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW, SMALL, Input, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

TWO = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(messages=2))
THREE = TopicBatching(BatchingKind.PER_TOPIC, BatchLimits(messages=3))
COMBINED = TopicBatching(BatchingKind.COMBINED, BatchLimits(messages=3))


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(replace(SMALL, chunks=160)) as slab:
        yield slab


def rules(table: TopicTable) -> Callable[[int], TopicBatching]:
    named = {b"three": THREE, b"combined": COMBINED, b"none": UNBATCHED}
    return lambda topic: named.get(table.name_of(topic).replace(b",", b" ").split(b" ")[0], TWO)


def one(slab: Slab, topic: int) -> Segment:
    return put_records(slab, [[KafkaRecord(0, b"", b"x")]], topic=topic)[0]


def add(gathering: Accumulator, slab: Slab, segments: list[Segment]) -> list[Segment]:
    return segments_of(gathering.add(as_claimed(slab, segments), 0))


def segments_of(runs: Iterable[ClaimedRun]) -> list[Segment]:
    return [run[0] for run in runs]


def test_accumulator_topics_are_bounded_by_the_topic_table(slab: Slab) -> None:
    table = TopicTable(slab)
    gathering = Accumulator(slab, ProcessRow(slab, DISPATCHER_ROW), rules(table))
    for number in range(4 * SMALL.topics):
        topic = table.add(b"t%d" % number, 1)
        segment = one(slab, topic)
        assert add(gathering, slab, [segment]) == []
        assert segments_of(gathering.flush_topic(topic)) == [segment]
        table.remove([topic])
    assert len(gathering._topics) <= SMALL.topics
    assert len(gathering._batches) <= SMALL.topics


def test_a_topic_that_reuses_an_entry_is_batched_by_its_own_rule(slab: Slab) -> None:
    table = TopicTable(slab)
    gathering = Accumulator(slab, ProcessRow(slab, DISPATCHER_ROW), rules(table))
    others = [table.add(b"t%d" % number, 1) for number in range(SMALL.topics - 2)]
    gone = table.add(b"three, gone", 1)
    waiting = [one(slab, gone), one(slab, gone)]
    assert add(gathering, slab, waiting) == []
    assert segments_of(gathering.flush_topic(gone)) == waiting
    table.remove([gone])
    new = table.add(b"new", 1)
    assert new % SMALL.topics == gone % SMALL.topics
    first, second, late = one(slab, new), one(slab, new), one(slab, gone)
    assert add(gathering, slab, [first]) == []
    assert gathering.flush_topic(gone) == [], "a frame that comes late says nothing of the topic that is there now"
    assert add(gathering, slab, [late]) == [late], "the batching of its topic is unknown"
    assert add(gathering, slab, [second]) == [first, second]
    assert add(gathering, slab, [one(slab, topic) for topic in others]) == []


def test_a_frame_of_many_topics_is_accumulated_as_separate_frames_are(slab: Slab) -> None:
    table = TopicTable(slab)
    row = ProcessRow(slab, DISPATCHER_ROW)
    gathering = Accumulator(slab, row, rules(table))
    own, combined, none = table.add(b"own", 1), table.add(b"combined", 1), table.add(b"none", 1)
    a, b, c, d, e = [one(slab, topic) for topic in (own, none, combined, own, combined)]
    f, g = one(slab, combined), one(slab, table.add(b"combined too", 1))
    assert add(gathering, slab, [a, b, c, d, e, f, g]) == [b, a, d, c, e, f]
    assert row.counters[Counter.NoBatchAnyPartition] == 1
    assert row.counters[Counter.CombinedTopicsBatchAnyPartition] == 4
    gathering.is_draining = True
    assert add(gathering, slab, [one(slab, own)]) != []
    assert segments_of(gathering.flush_all()) == [g]
    assert row.counters[Counter.NoBatchAnyPartition] == 1, "it is counted by the rule that it has"


TIMED = TopicBatching(BatchingKind.COMBINED, BatchLimits(time_ms=200))
LINGER_MS = linger_ms(TIMED)


class Ticks:
    """A combined batch of 200 ms, and frames with a record of the previous tick's first millisecond."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._topic = TopicTable(slab).add(b"t", 1)
        self.accumulator = Accumulator(slab, ProcessRow(slab, DISPATCHER_ROW), lambda _: TIMED)

    def frame(self, tick: int, *, arrived: int = 1, after: int = 1) -> int:
        """Add a frame `after` ms after a tick, and return the number of records that become ready."""
        segment = one(self._slab, self._topic)
        [run] = as_claimed(self._slab, [segment])
        run = (*run[:-1], (tick - 1) * LINGER_MS + arrived)
        return len(self.accumulator.add([run], tick * LINGER_MS + after))


def test_the_last_frame_before_its_due_time_completes_the_combined_batch(slab: Slab) -> None:
    ticks = Ticks(slab)
    assert [ticks.frame(tick) for tick in (10, 11, 12)] == [1, 1, 1]
    assert ticks.accumulator.due_ms is None


def test_a_frame_that_an_input_publishes_before_the_tick_completes_the_combined_batch(slab: Slab) -> None:
    ticks = Ticks(slab)
    assert [ticks.frame(10, arrived=after, after=after) for after in (1 - LEEWAY_MS, -1, 0)] == [1, 1, 1]


def test_a_combined_batch_waits_for_the_next_tick_if_it_comes_before_its_due_time(slab: Slab) -> None:
    ticks = Ticks(slab)
    assert ticks.frame(10, arrived=LINGER_MS - 1) == 0
    assert ticks.accumulator.due_ms == 10 * LINGER_MS - 1 + 200
    assert ticks.frame(11) == 2


def test_a_combined_batch_waits_for_the_inputs_of_the_previous_tick(slab: Slab) -> None:
    ticks = Ticks(slab)
    assert [ticks.frame(10), ticks.frame(10)] == [1, 1]
    assert [ticks.frame(11), ticks.frame(11)] == [0, 2]
    assert ticks.frame(12) == 0
    assert len(ticks.accumulator.flush_due(12 * LINGER_MS + 20)) == 1
    assert ticks.accumulator.due_ms is None
    assert ticks.frame(13) == 1


def test_records_with_and_without_a_key_are_counted_by_the_rule_of_their_topic(slab: Slab) -> None:
    source, row = Input(slab, topics=[(b"own", 1), (b"combined", 1), (b"none", 1)]), ProcessRow(slab, DISPATCHER_ROW)
    for topic in (b"own", b"combined", b"none"):
        source.receive([datagram(topic)] * 2 + [datagram(topic, partition_key=7)] * 3)
    add(Accumulator(slab, row, rules(TopicTable(slab))), slab, source.close_all())
    counted = {
        counter.name: row.counters[counter] for counter in Counter if "Batch" in counter.name and row.counters[counter]
    }
    assert counted == {
        "CombinedTopicsBatchAnyPartition": 2,
        "CombinedTopicsBatchPartitionKey": 3,
        "NoBatchAnyPartition": 2,
        "NoBatchPartitionKey": 3,
        "PerTopicBatchPartitionKey": 3,
    }
