"""Delivered batches: their states and counters, the buckets of waiting times, and the sums of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.kernels import Deliveries, DeliveryCounters
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.rows import ProcessRow, redo_counters
from bruce_mp.slab.runs import split_run
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS
from support.filled_slab import NOW_MS, FilledSlab
from support.slabs import DISPATCHER_ROW, contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bruce_mp.slab.runs import Segment

NEWS, CLICKS, SPORTS = 1, 2, 3
COUNTERS: Final = DeliveryCounters(7, 20, 40)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledSlab]:
    slab = FilledSlab(tmp_path / "slab", known=(b"news", b"clicks", b"sports"))
    yield slab
    slab.close()


def deliveries(
    filled: FilledSlab, bounds_ms: Sequence[int] = BOUNDS_MS, *, max_topics: int = 9, **options: Any
) -> Deliveries:
    row = ProcessRow(filled.slab, DISPATCHER_ROW)
    return Deliveries(filled.slab, row, filled.topics, bounds_ms, COUNTERS, max_topics=max_topics, **options)


def batch(topic: int, *segments: Segment) -> BuiltBatch:
    return BuiltBatch(topic, 0, 0, 0, segments)


def put(filled: FilledSlab, messages: int, arrived_ms: int = NOW_MS, topic: bytes = b"news") -> Segment:
    """Fill a run that began at a given time."""
    (segment,) = filled.receive(topic, messages)
    at = filled.slab.chunk_at(segment.chunk) + segment.run
    filled.slab.store_signed(at + lay.RUN_ARRIVED_MS, arrived_ms)
    return segment


def delivered_count(filled: FilledSlab) -> int:
    return sum(record.state is RunState.DELIVERED for record in contents(filled.slab))


@pytest.mark.parametrize(
    ("delay_ms", "bucket"), [(-5, 0), (0, 0), (1, 0), (2, 1), (1000, 8), (1001, 9), (10**9, len(BOUNDS_MS))]
)
def test_messages_count_in_the_bucket_of_their_delay(filled: FilledSlab, delay_ms: int, bucket: int) -> None:
    segment, made = put(filled, 7), deliveries(filled)
    assert made.settle([batch(NEWS, segment)], NOW_MS + delay_ms) == 1
    assert made.sums() == [(b"news", 7, segment.payload, {bucket: 7})]
    assert redo_counters(filled.slab, DISPATCHER_ROW) == {7: 7, 20 + bucket: 7, 40: 7 * max(0, delay_ms)}
    assert delivered_count(filled) == 7


def test_batches_of_a_topic_are_summed_until_clear(filled: FilledSlab) -> None:
    first, second, third = put(filled, 2, NOW_MS - 3), put(filled, 3, NOW_MS - 4), put(filled, 4, NOW_MS - 100)
    other, made = put(filled, 5, NOW_MS, b"clicks"), deliveries(filled, (1, 10))
    assert not made
    assert made.settle([batch(NEWS, first, second), batch(CLICKS, other)], NOW_MS) == 2
    assert made.settle([batch(NEWS, third)], NOW_MS) == 1
    size = first.payload + second.payload + third.payload
    assert made.sums() == [(b"news", 9, size, {1: 5, 2: 4}), (b"clicks", 5, other.payload, {0: 5})]
    assert len(made) == 2
    assert delivered_count(filled) == 14
    counters = ProcessRow(filled.slab, DISPATCHER_ROW).counters
    assert [counters[number] for number in (7, 20, 21, 22, 40)] == [14, 5, 5, 4, 2 * 3 + 3 * 4 + 4 * 100]

    made.clear()
    assert (len(made), made.sums()) == (0, [])
    last = put(filled, 1, NOW_MS, b"clicks")
    made.settle([batch(CLICKS, last)], NOW_MS)
    assert made.sums() == [(b"clicks", 1, last.payload, {0: 1})]


def test_many_topics_have_sums(filled: FilledSlab) -> None:
    names = [b"topic%d" % number for number in range(20)]
    numbers = [filled.topics.add(name, 1) for name in names]
    made = deliveries(filled, max_topics=100)
    for _ in range(2):
        segments = filled.receive(b"topic0", 1)[:1] + [put(filled, 1, topic=name) for name in names[1:]]
        made.settle([batch(topic, segment) for topic, segment in zip(numbers, segments, strict=True)], NOW_MS)
    assert [(name, count) for name, count, _, _ in made.sums()] == [(name, 2) for name in names]


def test_a_new_topic_in_the_entry_of_another_has_its_own_sum(filled: FilledSlab) -> None:
    made, segment = deliveries(filled), put(filled, 2)
    made.settle([batch(NEWS, segment)], NOW_MS)
    while filled.topics.free_entry_count:
        filled.topics.add(b"other%d" % filled.topics.free_entry_count, 1)
    filled.topics.remove([NEWS])
    later = filled.topics.add(b"later", 1)
    assert later == NEWS + filled.slab.geometry.topics
    made.settle([batch(later, put(filled, 3, topic=b"later"))], NOW_MS)
    assert [(name, count) for name, count, _, _ in made.sums()] == [(b"news", 2), (b"later", 3)]


def test_excess_topics_share_an_unnamed_sum(filled: FilledSlab) -> None:
    made = deliveries(filled, max_topics=1)
    for topic, name in ((NEWS, b"news"), (CLICKS, b"clicks"), (SPORTS, b"sports"), (NEWS, b"news")):
        made.settle([batch(topic, put(filled, topic, topic=name))], NOW_MS)
    assert [(name, count) for name, count, _, _ in made.sums()] == [(b"news", 2), (b"", 5)]


def test_only_refusals_of_the_topics_are_cleared(filled: FilledSlab) -> None:
    for topic in (NEWS, CLICKS):
        filled.topics.store_refusal(topic, 29)
    deliveries(filled).settle([batch(CLICKS, put(filled, 1, topic=b"clicks"))], NOW_MS)
    assert filled.topics.refusals() == {b"news": 29}


def test_no_batch_changes_nothing(filled: FilledSlab) -> None:
    made, version = deliveries(filled), ProcessRow(filled.slab, DISPATCHER_ROW).version
    assert made.settle([], NOW_MS) == 0
    assert not made
    assert ProcessRow(filled.slab, DISPATCHER_ROW).version == version


def test_a_transaction_has_whole_batches(filled: FilledSlab) -> None:
    batches = [batch(NEWS, put(filled, 1), put(filled, 1)) for _ in range(4)]
    assert deliveries(filled, max_segments=5).settle(batches, NOW_MS) == 2
    assert delivered_count(filled) == 4
    assert deliveries(filled, max_segments=4).settle(batches[2:], NOW_MS) == 2
    assert delivered_count(filled) == 8


def test_an_invalid_segment_is_refused_and_nothing_changes(filled: FilledSlab) -> None:
    segment, made = put(filled, 2), deliveries(filled)
    filled.topics.store_refusal(NEWS, 29)
    bad = [
        segment._replace(chunk=10**6),
        segment._replace(run=segment.run + 8),
        segment._replace(generation=99),
        segment._replace(first=segment.first + 10**5),
        segment._replace(records=1),
    ]
    version = ProcessRow(filled.slab, DISPATCHER_ROW).version
    for one in bad:
        with pytest.raises(SlabError):
            made.settle([batch(NEWS, segment), batch(NEWS, one)], NOW_MS)
    assert not made
    assert filled.topics.refusals() == {b"news": 29}
    assert delivered_count(filled) == 0
    assert ProcessRow(filled.slab, DISPATCHER_ROW).version == version


@pytest.mark.parametrize(
    ("field", "is_split"),
    [
        *((field, is_split) for field in (lay.RUN_MAGIC_AT, lay.RUN_GENERATION) for is_split in (False, True)),
        (lay.RUN_HEADER + lay.RECORD_VALUE_LENGTH, True),  # only a split run is read record by record
    ],
)
def test_a_damaged_run_is_refused_and_nothing_changes(filled: FilledSlab, field: int, *, is_split: bool) -> None:
    good, damaged = put(filled, 2), put(filled, 2)
    at = filled.slab.chunk_at(damaged.chunk) + damaged.run
    if is_split:
        split_run(filled.slab, damaged.chunk, damaged.run)
    filled.slab.words[(at + field) >> 2] ^= 1 << 31
    made, version = deliveries(filled), ProcessRow(filled.slab, DISPATCHER_ROW).version
    with pytest.raises(SlabError):
        made.settle([batch(NEWS, good), batch(NEWS, damaged)], NOW_MS)
    assert not made
    assert ProcessRow(filled.slab, DISPATCHER_ROW).version == version
    assert made.settle([batch(NEWS, good)], NOW_MS) == 1
