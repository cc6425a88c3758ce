"""A slab shared by several inputs: each uses only its own chunks and gets its guaranteed part."""

from __future__ import annotations

import fcntl
import os
import signal
from typing import TYPE_CHECKING, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bruce_mp.kernels import CHOICE
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import SEARCH_PAUSE_MS, ChunkPool, chunk_headers
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.shares import Shares, rebuild_table
from support.examples import examples
from support.slabs import new_slab, slab_file
from support.variants import VARIANTS, chunk_pool_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROWS: Final = (lay.ROW_FIRST_INPUT, lay.ROW_FIRST_INPUT + 1, lay.ROW_FIRST_INPUT + 2)
CHUNKS: Final = 2500
"""Three chunks in each share but the last, which has one."""
GEOMETRY: Final = Geometry(chunks=CHUNKS, topics=16, partitions=16, landing_slots=8, landing_slot_size=4096)


class SharingMachine(RuleBasedStateMachine):
    """Inputs that allocate and free; the model has the owner of each chunk."""

    pool_type: ClassVar = ChunkPool

    @initialize()
    def start(self) -> None:
        self.file = slab_file(GEOMETRY)
        self.path = self.file.__enter__()
        self.slab = Slab(self.path)
        self.pools = {row: self.pool_type(self.slab, row, ROWS) for row in ROWS}
        self.taken: dict[int, tuple[int, int]] = {}
        self.now_ms = 0

    def teardown(self) -> None:
        if hasattr(self, "slab"):
            self.slab.close()
            self.file.__exit__(None, None, None)

    @rule(row=st.sampled_from(ROWS), spans=st.lists(st.integers(1, 20), min_size=1, max_size=60))
    def allocate(self, row: int, spans: list[int]) -> None:
        self.now_ms += SEARCH_PAUSE_MS
        for span in spans:
            chunk = self.pools[row].allocate(span, self.now_ms)
            if chunk is not None:
                self.forget(chunk, span)
                self.taken[chunk] = (row, span)
        self.keep(self.heads())

    @rule(row=st.sampled_from(ROWS), share=st.floats(0, 1))
    def free(self, row: int, share: float) -> None:
        """Release the input's chunks, which have no runs and so count as settled."""
        own = sorted(chunk for chunk, (owner, _) in self.taken.items() if owner == row)
        for chunk in own[: int(len(own) * share)]:
            self.pools[row].seal(chunk)
        self.pools[row].allow_reclaim()
        self.pools[row].reclaim_idle()
        self.keep(self.heads())

    @rule(row=st.sampled_from(ROWS))
    def die(self, row: int) -> None:
        """Start a successor, which adopts the chunks and frees those without runs."""
        self.pools[row] = self.pool_type(self.slab, row, ROWS)
        self.pools[row].allow_reclaim()
        self.free(row, 0)

    def forget(self, chunk: int, span: int) -> None:
        """Remove what a new span covers from the model, and check that it was not in use."""
        covered = {at for at, place in self.taken.items() if at < chunk + span and chunk < at + place[1]} - {chunk}
        if covered:
            assert not covered & self.heads().keys()
            self.keep(self.taken.keys() - covered)

    def keep(self, chunks: Collection[int]) -> None:
        self.taken = {chunk: place for chunk, place in self.taken.items() if chunk in chunks}

    def heads(self) -> dict[int, tuple[int, int]]:
        return {chunk: (span, state) for chunk, state, span, _ in chunk_headers(self.slab) if state}

    @invariant()
    def the_table_tells_whose_each_chunk_is(self) -> None:
        if not hasattr(self, "slab"):
            return
        shares = Shares(self.slab, 0)
        for chunk, (row, span) in self.taken.items():
            for at in range(chunk, chunk + span):
                assert self.slab.view[lay.SUPER_SHARES + at // shares.size] == row

    @invariant()
    def what_is_guaranteed_can_be_had(self) -> None:
        if not hasattr(self, "slab"):
            return
        shares = Shares(self.slab, 0)
        for row, pool in self.pools.items():
            has = sum(span for owner, span in self.taken.values() if owner == row)
            assert has + pool.free_count >= (shares.count // 6 // 8 - 1) * shares.size


SharingMachine.TestCase.settings = examples(10, steps=15)
TestSharing = SharingMachine.TestCase


class CompiledSharingMachine(SharingMachine):
    """The same with the compiled pool."""

    pool_type = chunk_pool_of(VARIANTS[-1])


CompiledSharingMachine.TestCase.settings = examples(5, steps=15)
TestCompiledSharing = pytest.mark.skipif(not CHOICE.compiled, reason=CHOICE.sentence)(CompiledSharingMachine.TestCase)


def fill(pool: ChunkPool, now_ms: int = 0) -> Iterator[int]:
    while (chunk := pool.allocate(1, now_ms)) is not None:
        yield chunk


def test_an_input_leaves_busy_inputs_their_guaranteed_share() -> None:
    with new_slab(GEOMETRY) as slab:
        greedy, modest, third = (ChunkPool(slab, row, ROWS) for row in ROWS)
        share = Shares(slab, 0).size
        assert modest.allocate(1, 0) is not None
        assert third.allocate(1, 0) is not None
        assert len(list(fill(greedy))) in range(greedy.capacity, greedy.capacity + share)  # the last share is short
        guaranteed = (CHUNKS - greedy.capacity) // 2
        assert len(list(fill(modest))) in range(guaranteed - share, guaranteed + share)


def test_an_input_may_use_nearly_all_chunks_while_others_are_idle() -> None:
    with new_slab(GEOMETRY) as slab:
        greedy, idle, _ = (ChunkPool(slab, row, ROWS) for row in ROWS)
        assert len(list(fill(greedy))) > 0.95 * CHUNKS
        at_once = len(list(fill(idle)))
        assert at_once in range(CHUNKS // 6 // 8 - 10, CHUNKS // 6 // 8 + 10)
        for chunk in range(CHUNKS):
            if slab.view[slab.chunk_at(chunk) + lay.CHUNK_OWNER] == ROWS[0]:
                greedy.seal(chunk)
        greedy.allow_reclaim()
        greedy.reclaim_idle()
        assert at_once + len(list(fill(idle, SEARCH_PAUSE_MS))) > CHUNKS // 6


def test_reserved_chunks_stay_until_the_input_returns_their_share() -> None:
    with new_slab(GEOMETRY) as slab:
        greedy, *_ = (ChunkPool(slab, row, ROWS) for row in ROWS)
        used = set(fill(greedy))
        share = Shares(slab, ROWS[0], ROWS)
        some = next(
            chunks for chunks in map(share.chunks_of, share.own_shares) if len(chunks) > 1 and used.issuperset(chunks)
        )
        for chunk in some:
            if chunk == some[-1]:
                greedy.reserve(len(some) - 1)
            greedy.seal(chunk)
            greedy.allow_reclaim()
            greedy.reclaim_settled([chunk])
        assert greedy.own_free_count == len(some)
        greedy.reclaim_idle()
        assert greedy.own_free_count == 0


def test_shares_freed_by_a_busy_input_go_to_a_waiting_one() -> None:
    with new_slab(GEOMETRY) as slab:
        busy, hungry, _ = (ChunkPool(slab, row, ROWS) for row in ROWS)
        chunks = list(fill(busy))
        list(fill(hungry))
        for chunk in chunks[: len(chunks) // 2]:
            busy.seal(chunk)
        busy.allow_reclaim()
        got = 0
        for at_ms in range(0, 100, 10):  # each time it returns shares that are scarce
            busy.reclaim_idle()
            got += len(list(fill(hungry, at_ms)))
        assert got > len(chunks) // 3


def test_a_single_input_can_use_every_chunk() -> None:
    with new_slab(GEOMETRY) as slab:
        pool = ChunkPool(slab, ROWS[1], ROWS[1:2])
        assert pool.capacity == pool.free_count == CHUNKS
        assert len(list(fill(pool))) == CHUNKS


@pytest.mark.process
def test_a_held_lock_is_not_awaited_even_if_the_file_is_gone() -> None:
    with new_slab(GEOMETRY) as slab:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:  # POSIX locks are a process's
            descriptor = os.open(slab.path, os.O_RDWR)
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, lay.SUPER_SHARES)
            os.write(writer, b"1")
            signal.pause()
        os.read(reader, 1)
        slab.path.unlink()
        try:
            assert Shares(slab, ROWS[0], ROWS).claim_one() is None
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert Shares(slab, ROWS[0], ROWS).claim_one() == 0


def test_the_share_table_can_be_rebuilt_from_the_chunks() -> None:
    with new_slab(GEOMETRY) as slab:
        pools = [ChunkPool(slab, row, ROWS) for row in ROWS]
        for pool in pools:
            for span in (1, 7, 30):
                pool.allocate(span, 0)
        table = slice(lay.SUPER_SHARES, lay.SUPER_SHARES + lay.SHARES_MAX)
        before = bytes(slab.view[table])
        slab.view[table] = bytes(lay.SHARES_MAX)
        rebuild_table(slab, [(chunk, span) for chunk, state, span, _ in chunk_headers(slab) if state])
        after = bytes(slab.view[table])
        assert set(after) == {0, *ROWS}
        assert all(new in {0, old} for old, new in zip(before, after, strict=True))
