"""Damaged memory and damaged frames: every reader refuses them with SlabError or skips them, in bounded time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs
from bruce_mp.slab.chunks import ChunkPool, is_settled
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import (
    arrivals_in_chunks,
    close_open_runs,
    inspect_segment,
    rebuild_batches,
    sweep,
    sweep_filled,
)
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import Segment, is_current, segment_words, split_run, unpack_segments, write_placement
from bruce_mp.telemetry.held import held_by_topic
from support.examples import examples
from support.slabs import DISPATCHER_ROW, INPUT_ROW, Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.file import Slab

HELD = state_word(RunState.IN_FLIGHT, 1)
CHUNKS_IN_USE = 6


def fill(slab: Slab) -> list[Segment]:
    """Fill the first chunks with whole runs, split runs, an open run, runs with names and a span."""
    sender = Input(slab, topics=[(b"t1", 3), (b"t2", 1)])
    sender.receive([datagram(b"t1", bytes(900), b"k", key) for key in (0, 1, 1)] + [datagram(b"t2", b"a")])
    sender.receive([datagram(b"new", b"b", b"", 1), datagram(b"new", b"c", b"", 2), datagram(b"other", bytes(500))])
    large = memoryview(datagram(b"t2", bytes(9000)))
    sender.lanes.ingest(large, [(0, len(large))], sender.base, 1)
    segments = sender.close_all()
    for segment in segments[1::2]:
        split_run(slab, segment.chunk, segment.run)
    for number, segment in enumerate(segments):
        write_placement(slab, segment, 0, 10 * number, 0, opens_batch=True)
    set_state(slab, segments, HELD)
    sender.receive([datagram(b"t1", b"still open")])
    return segments


def actions(slab: Slab, segment: Segment) -> list[Callable[[], object]]:
    """Return every function that walks memory, with the segment where it needs one."""
    return [
        lambda: kernels.claim(slab, [segment], HELD, HELD),
        lambda: set_state(slab, [segment], HELD),
        lambda: kernels.bind_partition(slab, [segment], [1]),
        lambda: kernels.read_headers(slab, [segment]),
        lambda: kernels.claim_runs(slab, [segment], HELD, HELD),
        lambda: kernels.queue_chosen(slab, [segment], {}, lambda _: None, 500, known={1: None, 2: None}),
        lambda: kernels.encode(slab, [segment]),
        lambda: kernels.split_by_size(slab, segment, 500),
        lambda: kernels.split_by_partition(slab, segment, [1, 2, 3]),
        lambda: kernels.split_at(slab, segment, 1, 1000),
        lambda: kernels.time_range(slab, segment),
        lambda: kernels.messages(slab, segment, b"t", 100),
        lambda: inspect_segment(slab, segment),
        lambda: is_current(slab, segment),
        lambda: segment_words(slab, segment),
        lambda: split_run(slab, segment.chunk, segment.run),
        lambda: write_placement(slab, segment, 1, 2, 3, opens_batch=True),
        lambda: ProcessRow(slab, DISPATCHER_ROW).settle([segment], RunState.DELIVERED, 0, {1: 1}),
    ]


def sweeps(slab: Slab) -> list[Callable[[], object]]:
    """Return the readers without ownership and the recovery steps, which may not even raise SlabError."""
    return [
        lambda: list(all_runs(slab)),
        lambda: rebuild_batches(sweep(slab, {RunState.IN_FLIGHT})),
        lambda: sweep(slab, set(RunState)),
        lambda: sweep_filled(slab),
        lambda: arrivals_in_chunks(slab, 0),
        lambda: held_by_topic(slab),
        lambda: count_books(slab),
        lambda: [is_settled(slab, chunk) for chunk in range(slab.geometry.chunks)],
        lambda: close_open_runs(slab, INPUT_ROW),
        lambda: fill_up(slab),
    ]


def fill_up(slab: Slab) -> None:
    """Allocate as a later input would, which must succeed."""
    pool = ChunkPool(slab, INPUT_ROW)
    pool.allow_reclaim()
    for now_ms in range(slab.geometry.chunks):
        pool.allocate(1 + now_ms % 2, 10 * now_ms)


def headers(slab: Slab) -> list[int]:
    """Return the offsets in the chunk area of all fields that are read as numbers."""
    places: list[int] = []
    for chunk, offset, run in all_runs(slab):
        base = chunk * lay.CHUNK_BYTES
        places += range(base, base + lay.CHUNK_HEADER)
        places += range(base + offset, base + offset + lay.RUN_HEADER)
        places += range(base + offset + run.body_offset, base + offset + run.body_offset + lay.RECORD_HEADER)
    return places


@pytest.mark.exhaustive
@examples(60)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255), st.booleans()), min_size=1, max_size=6),
)
def test_damaged_memory_raises_only_slab_errors(flips: list[tuple[int, int, bool]]) -> None:
    with new_slab() as slab:
        segments = fill(slab)
        places = headers(slab)
        for where, bits, in_header in flips:
            at = places[where % len(places)] if in_header else where % (CHUNKS_IN_USE * lay.CHUNK_BYTES)
            slab.view[slab.chunks_at + at] ^= bits
        image = bytes(slab.view[slab.chunks_at : slab.geometry.file_size])
        for segment in segments:
            for action in actions(slab, segment):
                refused_or_done(action)
            slab.view[slab.chunks_at : slab.geometry.file_size] = image
        for action in sweeps(slab):
            action()


def refused_or_done(action: Callable[[], object]) -> None:
    with suppress(SlabError):
        action()


numbers = st.sampled_from([0, 1, 7, 8, 64, 2**31, 2**32 - 1, 2**32 - 8]) | st.integers(0, 2**32 - 1)


@examples(40)
@given(fields=st.lists(st.none() | st.integers(-100, 100) | numbers, min_size=6, max_size=6), which=st.integers(0, 10))
def test_damaged_segments_raise_only_slab_errors(fields: list[int | None], which: int) -> None:
    with new_slab() as slab:
        segments = fill(slab)
        segment = segments[which % len(segments)]
        values = [
            old if new is None else old + new if -100 <= new <= 100 else new
            for old, new in zip(segment, fields, strict=True)
        ]
        damaged = Segment(*(value & 0xFFFFFFFF for value in values))
        for action in actions(slab, damaged):
            refused_or_done(action)
        for action in sweeps(slab):
            action()


@given(data=st.binary(max_size=100))
@examples(50)
def test_a_frame_of_segments_is_whole_or_refused(data: bytes) -> None:
    if len(data) % 24:
        with pytest.raises(SlabError, match="not a multiple of 24"):
            unpack_segments(data)
    else:
        assert len(unpack_segments(data)) == len(data) // 24


def test_runs_before_the_damage_are_found(slab: Slab) -> None:
    sender = Input(slab, linger_ms=0, topics=[(b"t1", 3)])
    for number in range(4):
        sender.receive([datagram(value=b"%d" % number)])
    segments = sender.lanes.drain_closed()
    assert len({segment.chunk for segment in segments}) == 1
    slab.view[slab.chunk_at(segments[2].chunk) + segments[2].run + lay.RUN_MAGIC_AT] ^= 1
    assert [found.segment for found in sweep(slab, set(RunState))] == segments[:2]


def test_a_damaged_chunk_is_never_reclaimed(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(value=b"x")])
    [segment] = sender.close_all()
    set_state(slab, [segment], RunState.DELIVERED)
    assert is_settled(slab, segment.chunk)
    slab.words[(slab.chunk_at(segment.chunk) + segment.run + lay.RUN_SIZE) >> 2] = 0
    assert not is_settled(slab, segment.chunk)


@examples(50)
@given(lengths=st.lists(numbers, min_size=1, max_size=16))
def test_damaged_landing_zone_lengths_are_tolerated(lengths: list[int]) -> None:
    with new_slab() as slab:
        sender = Input(slab, topics=[(b"t1", 3)])
        for slot, length in enumerate(lengths):
            at = slab.geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES + lay.MMSGHDR_LENGTH
            slab.words[at >> 2] = length
        sender.admit()
        assert landing_zone.landed_lengths(slab) in (
            [],
            lengths[lengths.index(2**32 - 1) :] if 2**32 - 1 in lengths else [],
        )
