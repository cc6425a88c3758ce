"""The chunk pool against a small model, over crashes; above all, it must not hand out a chunk in use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bruce_mp.kernels import CHOICE
from bruce_mp.kernels.pure.lane import Lane, LaneHeader
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import (
    INSPECTIONS_PER_ALLOCATION,
    SEARCH_PAUSE_MS,
    STUCK_AFTER_MS,
    ChunkPool,
    chunk_headers,
    is_settled,
    used_chunk_headers,
)
from bruce_mp.slab.file import Slab
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.layout import ChunkState, RunState
from bruce_mp.slab.runs import Segment, read_run, segment_words, split_run
from support.crash_images import crash_images, machine_images
from support.examples import examples
from support.slabs import INPUT_ROW, SMALL, new_slab, set_state, slab_file
from support.variants import VARIANTS, chunk_pool_of

CHUNKS = SMALL.chunks
IMAGES: Final = {"pure": crash_images, "compiled": machine_images}


@dataclass
class Allocation:
    """The model's state of a chunk or span in use."""

    span: int
    generation: int
    lane: Lane
    last_arrival: int = 0
    runs: list[tuple[Segment, set[int]]] = field(default_factory=list)
    """Each run with the indices of its unsettled state words."""

    @property
    def settled(self) -> bool:
        return not any(unsettled for _, unsettled in self.runs)


class PoolMachine(RuleBasedStateMachine):
    """Allocates, fills, seals, settles and crashes; the model predicts used chunks and possible allocations."""

    pool_type: ClassVar = ChunkPool

    @initialize()
    def start(self) -> None:
        self.file = slab_file()
        self.path = self.file.__enter__()
        self.slab = Slab(self.path)
        self.pool = self.pool_type(self.slab, INPUT_ROW)
        self.open: dict[int, Allocation] = {}
        self.fresh: dict[int, Allocation] = {}
        self.sealed: dict[int, Allocation] = {}
        self.arrival = 0
        self.now_ms = 0
        self.generation = 0

    def teardown(self) -> None:
        if not hasattr(self, "slab"):
            return
        self.everything_comes_back()
        self.slab.close()
        self.file.__exit__(None, None, None)

    def everything_comes_back(self) -> None:
        for chunk in list(self.open):
            self.seal(chunk)
        for allocation in (*self.fresh.values(), *self.sealed.values()):
            set_state(self.slab, [segment for segment, _ in allocation.runs], RunState.DELIVERED)
        self.pool.allow_reclaim()
        self.now_ms += SEARCH_PAUSE_MS
        assert [self.pool.allocate(1, self.now_ms) is not None for _ in range(CHUNKS)] == [True] * CHUNKS
        assert self.pool.allocate(1, self.now_ms) is None
        assert self.pool.free_count == 0

    @property
    def used(self) -> dict[int, Allocation]:
        return {**self.open, **self.fresh, **self.sealed}

    def room_for(self, span: int) -> bool:
        """Report if a gap exists once all settled chunks are reclaimed."""
        taken = bytearray(CHUNKS)
        pinned = {**self.open, **self.fresh, **{c: a for c, a in self.sealed.items() if not a.settled}}
        for chunk, allocation in pinned.items():
            taken[chunk : chunk + allocation.span] = b"\1" * allocation.span
        return bytes(span) in taken

    @rule(span=st.integers(1, 5), step_ms=st.sampled_from([0, SEARCH_PAUSE_MS, STUCK_AFTER_MS]))
    def allocate(self, span: int, step_ms: int) -> None:
        self.now_ms += step_ms
        possible = self.room_for(span)
        chunk = self.pool.allocate(span, self.now_ms)
        self.forget_reclaimed()
        if chunk is None:
            assert not possible or not step_ms  # no second inspection at the same time
            return
        assert possible
        new = set(range(chunk, chunk + span))
        assert new <= set(range(CHUNKS))
        for at, allocation in self.used.items():
            assert new.isdisjoint(range(at, at + allocation.span))
        generation = self.slab.words[(self.slab.chunk_at(chunk) + lay.CHUNK_GENERATION) >> 2]
        assert generation > self.generation  # unique in the life of the slab
        self.generation = generation
        lane = Lane(self.slab, LaneHeader(1, b"", 0, -1, 0))
        lane.use_chunk(chunk, span)
        self.open[chunk] = Allocation(span, generation, lane)

    @invariant()
    def stuck_ones_are_sealed(self) -> None:
        if hasattr(self, "pool"):
            spans = {chunk: span for chunk, state, span, _ in chunk_headers(self.slab) if state is ChunkState.SEALED}
            assert self.pool.stuck_count <= sum(spans.values())

    def forget_reclaimed(self) -> None:
        """Check that the pool reclaimed only sealed, released and settled chunks."""
        heads = {chunk: generation for chunk, state, _, generation in chunk_headers(self.slab) if state}
        for chunk, allocation in list(self.sealed.items()):
            if heads.get(chunk) != allocation.generation:
                assert allocation.settled
                del self.sealed[chunk]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4))
    def append_run(self, data: st.DataObject, sizes: list[int]) -> None:
        chunk = data.draw(st.sampled_from(sorted(self.open)))
        allocation = self.open[chunk]
        items = [(self.arrival + index, 0, 0, 0, 0, 0, 0, size, size, size) for index, size in enumerate(sizes)]
        if not allocation.lane.has_room(items[0]):
            return
        stop = allocation.lane.append(memoryview(bytes(3000)), items, 0, self.now_ms)
        segment = allocation.lane.close_run(HandoverTickets(self.slab, INPUT_ROW))
        allocation.runs.append((segment, set(segment_words(self.slab, segment))))
        allocation.last_arrival = self.arrival + stop - 1
        self.arrival += stop

    @precondition(lambda self: any(allocation.runs for allocation in self.used.values()))
    @rule(data=st.data(), outcome=st.sampled_from(sorted(lay.SETTLED)), cut=st.booleans())
    def settle(self, data: st.DataObject, outcome: RunState, cut: bool) -> None:
        runs = [run for allocation in self.used.values() for run in allocation.runs if run[1]]
        if not runs:
            return
        segment, unsettled = data.draw(st.sampled_from(runs))
        if cut and read_run(self.slab, segment.chunk, segment.run).state is not RunState.SPLIT:
            split_run(self.slab, segment.chunk, segment.run)
            unsettled.clear()
            unsettled.update(segment_words(self.slab, segment))
        for at in data.draw(st.sets(st.sampled_from(sorted(unsettled)))):
            self.slab.words[at] = outcome
            unsettled.remove(at)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def seal_one(self, data: st.DataObject) -> None:
        self.seal(data.draw(st.sampled_from(sorted(self.open))))

    def seal(self, chunk: int) -> None:
        self.pool.seal(chunk)
        self.fresh[chunk] = self.open.pop(chunk)

    @rule()
    def land(self) -> None:
        """Land the batch in the landing zone."""
        self.slab.longs[landing_zone.base_at(self.slab) >> 3] = self.arrival
        self.pool.allow_reclaim()
        self.sealed.update(self.fresh)
        self.fresh = {}

    @rule()
    def crash(self) -> None:
        self.slab.close()
        self.slab = Slab(self.path)
        self.pool = self.pool_type(self.slab, INPUT_ROW)
        base = self.slab.longs[landing_zone.base_at(self.slab) >> 3]
        used, self.open, self.fresh, self.sealed = self.used, {}, {}, {}
        for chunk, allocation in used.items():
            (self.fresh if allocation.last_arrival >= base else self.sealed)[chunk] = allocation

    @invariant()
    def headers_and_pool_agree(self) -> None:
        if not hasattr(self, "slab"):
            return
        self.forget_reclaimed()
        spans = {chunk: (span, generation) for chunk, state, span, generation in chunk_headers(self.slab) if state}
        assert spans == {chunk: (known.span, known.generation) for chunk, known in self.used.items()}
        assert self.pool.free_count == CHUNKS - sum(span for span, _ in spans.values())
        gaps = bytes(self.pool._free._used).split(b"\1")
        assert self.pool.own_free_count == sum(map(len, gaps))
        for span in (1, 2, 3):
            assert self.pool.count_free_spans(span, CHUNKS) == sum(len(gap) // span for gap in gaps)
        for chunk, known in self.used.items():
            assert is_settled(self.slab, chunk) == known.settled


PoolMachine.TestCase.settings = examples(30, steps=60)
TestPool = PoolMachine.TestCase


class CompiledPoolMachine(PoolMachine):
    """The same with the compiled pool."""

    pool_type = chunk_pool_of(VARIANTS[-1])


CompiledPoolMachine.TestCase.settings = examples(10, steps=60)
TestCompiledPool = pytest.mark.skipif(not CHOICE.compiled, reason=CHOICE.sentence)(CompiledPoolMachine.TestCase)


def test_a_full_pool_rescans_only_after_a_delay(slab: Slab) -> None:
    pool = ChunkPool(slab, INPUT_ROW)
    chunks = [pool.allocate(1, 0) for _ in range(CHUNKS)]
    assert pool.allocate(1, 0) is None
    for chunk in chunks:
        assert chunk is not None
        pool.seal(chunk)
    pool.allow_reclaim()
    assert pool.allocate(CHUNKS, SEARCH_PAUSE_MS - 1) is None
    assert pool.allocate(CHUNKS, SEARCH_PAUSE_MS) == 0


def test_chunks_of_landed_messages_are_not_reclaimed_after_a_crash() -> None:
    """Otherwise a second crash would find no trace of a delivered copy, and deliver it twice."""
    with slab_file() as path:
        slab = Slab(path)
        pool = ChunkPool(slab, INPUT_ROW)
        for arrival in range(CHUNKS):
            chunk = pool.allocate(1, 0)
            assert chunk is not None
            lane = Lane(slab, LaneHeader(1, b"", 0, -1, 0))
            lane.use_chunk(chunk, 1)
            lane.append(memoryview(b""), [(arrival, 0, 0, 0, 0, 0, 0, 0, 0, 0)], 0, 0)
            set_state(slab, [lane.close_run(HandoverTickets(slab, INPUT_ROW))], RunState.DELIVERED)
        slab.longs[landing_zone.base_at(slab) >> 3] = 10
        slab.close()

        slab = Slab(path)
        pool = ChunkPool(slab, INPUT_ROW)
        assert {pool.allocate(1, 0) for _ in range(11)} == {*range(10), None}
        pool.allow_reclaim()
        assert pool.allocate(1, SEARCH_PAUSE_MS) in range(10, CHUNKS)
        slab.close()


def test_generations_wrap(slab: Slab) -> None:
    pool = ChunkPool(slab, INPUT_ROW)
    chunk = pool.allocate(1, 0)
    assert chunk == 0
    slab.words[(slab.row_at(INPUT_ROW) + lay.ROW_GENERATION) >> 2] = 0xFFFFFFFF
    pool = ChunkPool(slab, INPUT_ROW)
    assert pool.allocate(1, 0) == 1
    assert 0 < slab.words[(slab.chunk_at(1) + lay.CHUNK_GENERATION) >> 2] < 64


def test_a_span_partly_released_by_a_crash_is_released_again(slab: Slab) -> None:
    """This holds also where the header of a record lies at a cleared place."""
    pool = ChunkPool(slab, INPUT_ROW)
    chunk = pool.allocate(4, 0)
    assert chunk == 0
    lane = Lane(slab, LaneHeader(1, b"", 0, -1, 0))
    lane.use_chunk(0, 4)
    up_to_the_edge = 2 * lay.CHUNK_BYTES - lay.CHUNK_HEADER - lay.RUN_HEADER - lay.RECORD_HEADER
    items = [(i, 0, 0, 0, 0, 0, 0, end, end, end) for i, end in enumerate((up_to_the_edge, 100))]
    lane.append(memoryview(bytes(3 * lay.CHUNK_BYTES)), items, 0, 0)
    segment = lane.close_run(HandoverTickets(slab, INPUT_ROW))
    split_run(slab, 0, segment.run)
    set_state(slab, [segment], RunState.DELIVERED)
    pool.seal(0)
    pool.allow_reclaim()
    area = range(slab.chunks_at, slab.geometry.file_size)
    images = crash_images(slab, [area], lambda: pool.allocate(CHUNKS, 0))
    assert len(images) > 8
    for _ in images:
        again = ChunkPool(slab, INPUT_ROW)
        again.seal(0)  # in the last images the chunk is open again
        again.allow_reclaim()
        assert again.allocate(CHUNKS, 0) == 0
        assert [state for _, state, _, _ in chunk_headers(slab)] == [ChunkState.OPEN]


def filled(slab: Slab, pool: ChunkPool, span: int, now_ms: int) -> Segment:
    """Fill and seal a run in a separate span."""
    chunk = pool.allocate(span, now_ms)
    assert chunk is not None
    lane = Lane(slab, LaneHeader(1, b"", 0, -1, 0))
    lane.use_chunk(chunk, span)
    lane.append(memoryview(bytes(100)), [(0, 0, 0, 0, 0, 0, 0, 100, 100, 100)], 0, now_ms)
    pool.seal(chunk)
    pool.allow_reclaim()
    return lane.close_run(HandoverTickets(slab, INPUT_ROW))


@pytest.mark.process
@pytest.mark.parametrize(
    ("variant", "is_reused"),
    [("pure", False), *((variant, True) for variant in VARIANTS)],  # the compiled one needs seconds to claim a share
)
def test_a_chunk_is_open_only_with_a_complete_header_after_a_crash(slab: Slab, variant: str, is_reused: bool) -> None:
    """Otherwise an open chunk would have the attempt or the last arrival number of its former use."""
    pool = chunk_pool_of(variant)(slab, INPUT_ROW)
    if is_reused:
        former = filled(slab, pool, CHUNKS, 0)
        set_state(slab, [former], RunState.DELIVERED)
        slab.words[(slab.chunk_at(0) + lay.CHUNK_ATTEMPT) >> 2] = 9
        slab.longs[(slab.chunk_at(0) + lay.CHUNK_LAST_ARRIVAL) >> 3] = 9
        pool.reclaim_idle()
    images = IMAGES[variant](slab, [range(slab.chunks_at, slab.geometry.file_size)], lambda: pool.allocate(2, 5))
    headers = [lay.CHUNK.unpack_from(slab.view, slab.chunk_at(0)) for _ in images]
    magic, generation, state, owner, _, span, *others = headers[-1]
    assert (magic, ChunkState(state), owner, span) == (lay.CHUNK_MAGIC, ChunkState.OPEN, INPUT_ROW, 2)
    assert generation
    assert others == [0, 0, 5, 0]
    assert len(set(headers)) > 3
    assert {header for header in headers if header[2] != ChunkState.FREE} == {headers[-1]}


def test_a_damaged_span_or_run_size_is_not_settled() -> None:
    """A span goes past the end of the file; the size of a run is no multiple of 8."""
    for field_at, value in ((lay.CHUNK_SPAN, 1 << 31), (lay.CHUNK_HEADER + lay.RUN_SIZE, lay.RUN_HEADER + 1)):
        with new_slab() as slab:
            pool = ChunkPool(slab, INPUT_ROW)
            run = filled(slab, pool, 1, 0)
            set_state(slab, [run], RunState.DELIVERED)
            slab.words[(slab.chunk_at(run.chunk) + lay.CHUNK_HEADER + lay.RUN_SIZE) >> 2] = 1 << 30
            slab.words[(slab.chunk_at(run.chunk) + field_at) >> 2] = value
            slab.words[(slab.chunk_at(run.chunk) + lay.CHUNK_RUNS) >> 2] = 2 if field_at == lay.CHUNK_SPAN else 1
            assert not is_settled(slab, run.chunk)


def test_long_held_chunks_count_as_stuck_until_settled() -> None:
    with new_slab(replace(SMALL, chunks=64)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        old = [filled(slab, pool, span, 0) for span in (1, 3, 5)]
        assert (pool.stuck_count, pool.usable) == (0, 64)
        young = filled(slab, pool, 2, STUCK_AFTER_MS + 1)
        pool.reclaim(64)
        assert (pool.stuck_count, pool.usable) == (9, 55)
        set_state(slab, [old[1], young], RunState.DELIVERED)
        pool.reclaim(64)
        assert (pool.stuck_count, pool.free_count) == (6, 58)
        set_state(slab, old, RunState.DELIVERED)
        pool.reclaim(64)
        assert (pool.stuck_count, pool.free_count) == (0, 64)


def test_stuck_chunks_do_not_delay_the_reclaim_of_others() -> None:
    """Most inspections are of chunks that are likely to be settled."""
    with new_slab(replace(SMALL, chunks=1024)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        for _ in range(600):
            filled(slab, pool, 1, 0)
        filled(slab, pool, 1, STUCK_AFTER_MS + 1)
        pool.reclaim_idle()
        assert pool.stuck_count == 600
        set_state(slab, [filled(slab, pool, 1, STUCK_AFTER_MS + 1) for _ in range(50)], RunState.DELIVERED)
        before = pool.free_count
        pool.reclaim(before + 50)
        assert pool.free_count == before + 50


def test_stuck_chunks_are_reclaimed_together_when_settled() -> None:
    """Few inspections are of stuck chunks, but they continue while chunks become free."""
    with new_slab(replace(SMALL, chunks=1024)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        old = [filled(slab, pool, 1, 0) for _ in range(600)]
        for _ in range(100):
            filled(slab, pool, 1, STUCK_AFTER_MS + 1)
        pool.reclaim_idle()
        set_state(slab, old, RunState.DELIVERED)
        pool.reclaim(1024)
        assert (pool.stuck_count, pool.free_count) == (0, 924)


def test_an_input_may_have_more_stuck_chunks_than_its_share() -> None:
    with new_slab(replace(SMALL, chunks=64)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        held = [filled(slab, pool, 1, 0) for _ in range(64)]
        pool = ChunkPool(slab, INPUT_ROW, [INPUT_ROW, INPUT_ROW + 1])
        pool.allow_reclaim()
        assert pool.allocate(1, STUCK_AFTER_MS + 1) is None
        pool.reclaim_idle()
        assert (pool.stuck_count, pool.usable, pool.free_count) == (64, 0, 0)
        set_state(slab, held, RunState.DELIVERED)
        pool.reclaim(1)
        assert pool.usable + pool.stuck_count == pool.capacity == pool.free_count + pool.stuck_count


def test_reserved_chunks_are_not_spared() -> None:
    with new_slab(replace(SMALL, chunks=64)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        assert (pool.can_spare(57), pool.can_spare(58)) == (True, False)
        pool.reserve(60)
        assert (pool.can_spare(4), pool.can_spare(5)) == (True, False)
        pool.reserve(1)
        for _ in range(40):
            pool.allocate(1, 0)
        assert (pool.can_spare(17), pool.can_spare(18)) == (True, False)


def test_reserved_adjacent_chunks_are_not_spared() -> None:
    """Ten spans of nine are neighbours, and many free chunks are scattered; a long span would use one of the ten."""
    with new_slab(replace(SMALL, chunks=1024)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        chunks = [pool.allocate(1, 0) for _ in range(1024)]
        for chunk in chunks:
            assert chunk is not None
            if chunk % (10 if chunk < 100 else 2):
                pool.seal(chunk)
        pool.allow_reclaim()
        pool.reclaim(1024)
        pool.reserve(90, 9)
        assert pool.count_free_spans(9, 100) == 10
        assert not pool.can_spare(4)
        pool.reserve(72, 9)
        assert pool.can_spare(4)


def test_a_free_slab_spares_adjacent_chunks() -> None:
    with new_slab(replace(SMALL, chunks=1024)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        pool.reserve(90, 9)
        assert pool.can_spare(32)


def test_a_span_may_cover_reclaimed_and_unused_chunks(slab: Slab) -> None:
    """The span becomes free only at a later inspection, behind other chunks."""
    pool = ChunkPool(slab, INPUT_ROW)
    for _ in range(INSPECTIONS_PER_ALLOCATION + 1):
        filled(slab, pool, 1, 0)
    set_state(slab, [filled(slab, pool, 3, 0)], RunState.DELIVERED)
    pool = ChunkPool(slab, INPUT_ROW)  # has claimed none of the other shares
    pool.allow_reclaim()
    first = INSPECTIONS_PER_ALLOCATION + 1
    assert pool.allocate(CHUNKS - first, 0) == first


def test_used_chunk_headers_are_those_of_the_spans_in_use(slab: Slab) -> None:
    """A damaged header counts as free and hides no header behind it."""
    pool = ChunkPool(slab, INPUT_ROW)
    firsts = [pool.allocate(span, 0) for span in (1, 3, 1, 2)]
    assert None not in firsts
    spans = dict(zip(firsts, (1, 3, 1, 2), strict=True))
    assert {chunk: span for chunk, _, span, _ in used_chunk_headers(slab)} == spans
    for chunk, offset, value in (
        (firsts[0], lay.CHUNK_STATE, 77),
        (firsts[2], lay.CHUNK_SPAN, CHUNKS),
        (firsts[3], 0, 0),
    ):
        at = slab.chunk_at(chunk or 0) + offset
        if offset == lay.CHUNK_STATE:
            slab.view[at] = value
        else:
            slab.words[at >> 2] = value
        del spans[chunk]
        heads = list(chunk_headers(slab))
        assert list(used_chunk_headers(slab)) == [head for head in heads if head[1] is not ChunkState.FREE]
        assert {chunk: span for chunk, _, span, _ in used_chunk_headers(slab)} == spans
        assert {state for first, state, _, _ in heads if first == chunk} == {ChunkState.FREE}


@examples(30)
@given(used=st.lists(st.booleans(), min_size=64, max_size=64), span=st.integers(1, 9), limit=st.integers(0, 70))
def test_the_disjoint_free_spans_of_each_gap_are_counted(used: list[bool], span: int, limit: int) -> None:
    with new_slab(replace(SMALL, chunks=64)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        for chunk in [pool.allocate(1, 0) for _ in used]:
            assert chunk is not None
            if not used[chunk]:
                pool.seal(chunk)
        pool.allow_reclaim()
        pool.reclaim_idle()
        gaps = "".join("x" if is_used else " " for is_used in used).split("x")
        assert pool.count_free_spans(span, limit) == min(limit, sum(len(gap) // span for gap in gaps))
