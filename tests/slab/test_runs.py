"""Runs, records and segments: reading, splitting, placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.runs import (
    Segment,
    name_of,
    next_sequence,
    pack_segments,
    read_run,
    runs_of,
    segment_bounds,
    segment_of,
    segment_records,
    segment_words,
    split_run,
    unpack_segments,
    write_placement,
)
from support.crash_images import crash_images
from support.slabs import Input, datagram, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

LAST_SEQUENCE = 2**31 - 1


def a_run(slab: Slab, records: int = 3, topic: bytes = b"t1") -> Segment:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(topic, b"%d" % index, partition_key=4) for index in range(records)])
    [segment] = sender.close_all()
    return segment


def test_segments_survive_packing() -> None:
    segments = [Segment(1, 2, 3, 4, 5, 6), Segment(*[2**32 - 1] * 6)]
    packed = pack_segments(segments)
    assert len(packed) == 48
    assert unpack_segments(memoryview(packed)) == segments
    with pytest.raises(SlabError, match="47 bytes"):
        unpack_segments(packed[:-1])


def test_a_topic_without_a_number_has_its_name_with_the_run(slab: Slab) -> None:
    segment = a_run(slab, topic=b"some name")
    run = read_run(slab, segment.chunk, segment.run)
    assert run.topic == 0
    assert name_of(slab, segment.chunk, segment.run, run) == b"some name"
    assert segment_of(segment.chunk, segment.run, run) == segment


def test_runs_are_stored_consecutively(slab: Slab) -> None:
    sender = Input(slab, linger_ms=0, topics=[(b"t1", 3)])
    for _ in range(3):
        sender.receive([datagram(value=b"x")])
    segments = sender.lanes.drain_closed()
    assert [segment_of(0, offset, run) for offset, run in runs_of(slab, 0)] == segments
    assert [run.ticket for _, run in runs_of(slab, 0)] == [1, 2, 3]


@pytest.mark.parametrize("first", [0, 5, LAST_SEQUENCE - 1, LAST_SEQUENCE])
def test_split_records_inherit_the_fields_of_the_run(slab: Slab, first: int) -> None:
    whole = a_run(slab)
    write_placement(slab, whole, 2, first, 9, opens_batch=True)
    set_state(slab, [whole], state_word(RunState.IN_FLIGHT, 6))
    run_at = slab.chunk_at(whole.chunk) + whole.run
    slab.view[run_at + lay.RUN_RETRIES] = 3
    for _ in range(2):
        split_run(slab, whole.chunk, whole.run)
        records = [record for _, record in segment_records(slab, whole)]
        assert {record.word for record in records} == {state_word(RunState.IN_FLIGHT, 6)}
        assert {(record.partition, record.epoch, record.retries) for record in records} == {(2, 9, 3)}
        assert [record.sequence for record in records] == [(first + index) % 2**31 for index in range(3)]
        key = lay.FLAG_PARTITION_KEY
        assert [record.flags for record in records] == [key | lay.FLAG_BATCH_START, key, key]
        assert read_run(slab, whole.chunk, whole.run).state is RunState.SPLIT


def test_a_run_without_a_partition_can_be_split(slab: Slab) -> None:
    whole = a_run(slab)
    split_run(slab, whole.chunk, whole.run)
    placements = {(record.partition, record.sequence, record.epoch) for _, record in segment_records(slab, whole)}
    assert placements == {(-1, -1, -1)}


def test_a_crash_during_a_split_leaves_the_run_whole_or_split(slab: Slab) -> None:
    whole = a_run(slab)
    write_placement(slab, whole, 2, 5, 9, opens_batch=True)
    set_state(slab, [whole], state_word(RunState.QUEUED, 6))
    area = range(slab.chunks_at, slab.geometry.file_size)
    images = crash_images(slab, [area], lambda: split_run(slab, whole.chunk, whole.run))
    words_of = []
    for _ in images:
        words = segment_words(slab, whole)
        assert {slab.words[at] for at in words} == {state_word(RunState.QUEUED, 6)}
        words_of.append(len(words))
        split_run(slab, whole.chunk, whole.run)
        assert [record.sequence for _, record in segment_records(slab, whole)] == [5, 6, 7]
    assert words_of == [1] * (len(images) - 1) + [3]


@pytest.mark.parametrize("is_split", [False, True])
def test_a_placement_has_partition_sequence_and_epoch(slab: Slab, is_split: bool) -> None:
    whole = a_run(slab)
    if is_split:
        split_run(slab, whole.chunk, whole.run)
    write_placement(slab, whole, 7, LAST_SEQUENCE, 1, opens_batch=True)
    write_placement(slab, whole, 1, LAST_SEQUENCE, 2, opens_batch=False)
    split_run(slab, whole.chunk, whole.run)
    records = [record for _, record in segment_records(slab, whole)]
    assert [record.sequence for record in records] == [LAST_SEQUENCE, 0, 1]
    assert {(record.partition, record.epoch, record.flags) for record in records} == {(1, 2, lay.FLAG_PARTITION_KEY)}
    write_placement(slab, whole, 4, -1, -1, opens_batch=False)
    assert {(r.partition, r.sequence, r.epoch) for _, r in segment_records(slab, whole)} == {(4, -1, -1)}


def test_segment_words_cover_whole_and_split_runs(slab: Slab) -> None:
    whole = a_run(slab)
    part = whole._replace(records=1)
    assert len(segment_words(slab, whole)) == 1
    with pytest.raises(SlabError, match="must be split first"):
        segment_words(slab, part)
    split_run(slab, whole.chunk, whole.run)
    assert len(segment_words(slab, whole)) == 3
    assert segment_words(slab, part) == segment_words(slab, whole)[:1]
    for step in (-8, 4, 2**31):
        with pytest.raises(SlabError, match="There are no 1 records"):
            segment_bounds(slab, part._replace(first=part.first + step))


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [(0, 1, 1), (5, 0, 5), (LAST_SEQUENCE, 1, 0), (LAST_SEQUENCE - 1, 5, 3), (-1, 7, -1)],
)
def test_sequence_numbers_wrap_to_0(sequence: int, count: int, expected: int) -> None:
    assert next_sequence(sequence, count) == expected
