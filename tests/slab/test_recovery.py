"""Record batches rebuilt from the slab alone, with the boundaries of their first send."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import (
    BuiltBatch,
    arrivals_in_chunks,
    close_open_runs,
    inspect_segment,
    rebuild_batches,
    sweep,
)
from bruce_mp.slab.runs import Segment, next_sequence, segment_records, split_run, write_placement
from support.examples import examples
from support.slabs import INPUT_ROW, Input, contents, datagram, new_slab, set_state

if TYPE_CHECKING:
    from random import Random

    from bruce_mp.slab.file import Slab

LAST_SEQUENCE = 2**31 - 1
HELD = state_word(RunState.IN_FLIGHT, 4)


class Plan(NamedTuple):
    """Batches of one partition in one epoch, each as its number of records."""

    topic: bytes
    partition: int
    epoch: int
    first_sequence: int
    sizes: list[int]


plans = st.lists(
    st.builds(
        Plan,
        topic=st.sampled_from([b"t1", b"t2"]),
        partition=st.integers(0, 2),
        epoch=st.integers(0, 2),
        first_sequence=st.sampled_from([0, 1, 100, LAST_SEQUENCE, LAST_SEQUENCE - 1, LAST_SEQUENCE - 5]),
        sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda plan: (plan.topic, plan.partition, plan.epoch),
)


def send(slab: Slab, sender: Input, plan: Plan, run_length: int) -> list[BuiltBatch]:
    """Fill runs and build batches with other boundaries over them, as a dispatcher does."""
    ready: list[Segment] = []
    for start in range(0, sum(plan.sizes), run_length):
        count = min(run_length, sum(plan.sizes) - start)
        sender.receive([datagram(plan.topic, bytes([index % 7])) for index in range(count)])
        ready += sender.lanes.drain_closed()
    topic = 1 if plan.topic == b"t1" else 2
    sequence = plan.first_sequence
    batches = []
    for size in plan.sizes:
        segments: list[Segment] = []
        left = size
        while left:
            head, rest = kernels.split_at(slab, ready.pop(0), left, 1 << 40)
            assert head
            segments.append(head)
            ready[:0] = [rest] if rest else []
            left -= head.records
        batches.append(BuiltBatch(topic, plan.partition, plan.epoch, sequence, tuple(segments)))
        for index, segment in enumerate(segments):
            write_placement(slab, segment, plan.partition, sequence, plan.epoch, opens_batch=index == 0)
            sequence = next_sequence(sequence, segment.records)
        set_state(slab, segments, HELD)
    return batches


def spelled_out(slab: Slab, batches: list[BuiltBatch]) -> list[tuple[int, int, int, int, list[int]]]:
    """Return batches with their records, however they are cut into segments."""
    return [
        (
            batch.topic,
            batch.partition,
            batch.epoch,
            batch.base_sequence,
            [record.arrival for segment in batch.segments for _, record in segment_records(slab, segment)],
        )
        for batch in batches
    ]


@examples(40)
@given(some=plans, run_length=st.integers(1, 9), order=st.randoms(use_true_random=False))
def test_batches_are_recovered_with_their_boundaries(some: list[Plan], run_length: int, order: Random) -> None:
    with new_slab() as slab:
        sender = Input(slab, linger_ms=0, topics=[(b"t1", 3), (b"t2", 3)])
        sent = [batch for plan in some for batch in send(slab, sender, plan, run_length)]
        found = sweep(slab, {RunState.IN_FLIGHT}, 4)
        order.shuffle(found)
        batches = rebuild_batches(found)
        in_order_of_place = sorted(sent, key=lambda batch: (batch.topic, batch.partition, batch.epoch))
        assert spelled_out(slab, batches) == spelled_out(slab, in_order_of_place)
        assert [batch.records for batch in batches] == [batch.records for batch in in_order_of_place]
        for batch in batches:
            assert kernels.encode(slab, batch.segments).record_count == batch.records


@examples(40)
@given(some=plans, run_length=st.integers(1, 9), data=st.data())
def test_acknowledged_batches_leave_others_unchanged(some: list[Plan], run_length: int, data: st.DataObject) -> None:
    with new_slab() as slab:
        sender = Input(slab, linger_ms=0, topics=[(b"t1", 3), (b"t2", 3)])
        sent = [batch for plan in some for batch in send(slab, sender, plan, run_length)]
        in_order_of_place = sorted(sent, key=lambda batch: (batch.topic, batch.partition, batch.epoch))
        acknowledged = data.draw(st.sets(st.sampled_from(range(len(sent)))))
        for index in acknowledged:
            set_state(slab, in_order_of_place[index].segments, RunState.DELIVERED)
        left = [batch for index, batch in enumerate(in_order_of_place) if index not in acknowledged]
        assert spelled_out(slab, rebuild_batches(sweep(slab, {RunState.IN_FLIGHT}))) == spelled_out(slab, left)


def test_sweep_finds_by_state_and_holder_in_order_of_arrival(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3), (b"t2", 3)])
    for topic in (b"t2", b"t1", b"t2", b"t1"):
        sender.receive([datagram(topic)])
        sender.lanes.close_all()
    segments = sender.lanes.drain_closed()
    set_state(slab, segments[:2], state_word(RunState.QUEUED, 1))
    set_state(slab, segments[2:3], state_word(RunState.QUEUED, 2))
    assert [found.segment for found in sweep(slab, set(RunState))] == segments
    assert [found.segment for found in sweep(slab, {RunState.QUEUED})] == segments[:3]
    assert [found.segment for found in sweep(slab, {RunState.QUEUED, RunState.FILLED}, 2)] == segments[2:3]
    assert [found.topic for found in sweep(slab, {RunState.QUEUED})] == [2, 1, 2]


def test_inspect_segment_agrees_with_sweep(slab: Slab) -> None:
    sender = Input(slab)
    sender.receive([datagram(partition_key=key) for key in (0, 1, 1)])
    [whole] = sender.close_all()
    parts = [part for _, part in kernels.split_by_partition(slab, whole, [8, 9])]
    for part in parts:
        write_placement(slab, part, 9, 5, 3, opens_batch=True)
    assert [inspect_segment(slab, part) for part in parts] == sweep(slab, set(RunState))
    with pytest.raises(SlabError):
        inspect_segment(slab, parts[0]._replace(first=2**32 - 8))


def test_open_runs_of_a_dead_input_are_recounted(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(value=b"12345", timestamp=7), datagram(key=b"k", timestamp=-7)])
    [found] = sweep(slab, {RunState.OPEN})
    at = slab.chunk_at(found.segment.chunk) + found.segment.run
    slab.words[(at + lay.RUN_PAYLOAD) >> 2] = 999
    close_open_runs(slab, INPUT_ROW + 1)
    assert [some.segment for some in sweep(slab, {RunState.OPEN})] == [found.segment._replace(payload=999)]
    close_open_runs(slab, INPUT_ROW)
    [closed] = sweep(slab, {RunState.FILLED})
    assert closed.segment == found.segment
    assert closed.segment.payload == 6
    assert slab.words[(at + lay.RUN_LARGEST) >> 2] == 5
    assert slab.read_signed(at + lay.RUN_MIN_TIMESTAMP) == -7


def test_an_open_run_without_records_is_closed_empty(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram()])
    [found] = sweep(slab, {RunState.OPEN})
    at = slab.chunk_at(found.segment.chunk) + found.segment.run
    slab.longs[(at + lay.RUN_COUNT) >> 3] = lay.RUN_HEADER << 32
    close_open_runs(slab, INPUT_ROW)
    assert [some.state for some in sweep(slab, set(RunState))] == [RunState.DELIVERED]


def test_arrivals_include_settled_records(slab: Slab) -> None:
    sender = Input(slab, linger_ms=0, topics=[(b"t1", 3)])
    for _ in range(4):
        sender.receive([datagram(), datagram()])
        set_state(slab, sender.lanes.drain_closed(), RunState.DELIVERED)
    assert arrivals_in_chunks(slab, 0) == set(range(8))
    assert arrivals_in_chunks(slab, 5) == {5, 6, 7}
    assert arrivals_in_chunks(slab, 8) == set()
    assert {content.state for content in contents(slab)} == {RunState.DELIVERED}


def test_damage_in_a_split_run_hides_only_its_later_records(slab: Slab) -> None:
    sender = Input(slab, linger_ms=0, topics=[(b"t1", 3)])
    for _ in range(2):
        sender.receive([datagram(value=b"x")] * 3)
    first, second = sender.lanes.drain_closed()
    assert first.chunk == second.chunk
    set_state(slab, [first, second], HELD)
    split_run(slab, first.chunk, first.run)
    _, (damaged, _), _ = segment_records(slab, first)
    slab.words[(slab.chunk_at(first.chunk) + damaged + lay.RECORD_VALUE_LENGTH) >> 2] = 2**31
    found = [part.segment for part in sweep(slab, {RunState.IN_FLIGHT})]
    assert [(segment.run, segment.records) for segment in found] == [(first.run, 1), (second.run, 3)]
    assert count_books(slab).held["in_flight"] == 4
