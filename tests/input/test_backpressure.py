"""Allowances: more rest as memory runs out, and in block mode only messages that find room."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.input.backpressure import MAX_MESSAGES, MAX_PAUSE_S, MIN_PAUSE_S, PART_DIVISOR, Backpressure
from bruce_mp.kernels import ChunkPool
from bruce_mp.slab.chunks import STUCK_AFTER_MS
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from support.examples import examples
from support.slabs import INPUT_ROW, Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

BATCH: Final = 8
LARGEST: Final = 40_000
CHUNKS: Final = 64
GEOMETRY: Final = Geometry(chunks=CHUNKS, topics=16, partitions=16, landing_slots=BATCH, landing_slot_size=LARGEST)


def pressure(slab: Slab, pool: ChunkPool, *, senders_wait: bool) -> Backpressure:
    return Backpressure(pool, max_size=slab.geometry.landing_slot_size, max_batch=BATCH, senders_wait=senders_wait)


@pytest.mark.parametrize("senders_wait", [False, True])
def test_an_empty_slab_admits_whole_batches_without_a_pause(senders_wait: bool) -> None:
    with new_slab(Geometry(chunks=1024, landing_slots=BATCH, landing_slot_size=LARGEST)) as slab:
        assert pressure(slab, ChunkPool(slab, INPUT_ROW), senders_wait=senders_wait).next_allowance(100) == (
            BATCH if senders_wait else MAX_MESSAGES,
            0.0,
        )


def test_pauses_grow_with_the_fill_level_from_three_quarters() -> None:
    with new_slab(GEOMETRY) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        watch = pressure(slab, pool, senders_wait=False)
        rests = []
        for _ in range(CHUNKS):
            rests.append(watch.next_allowance(100).pause_s)
            assert pool.allocate(1, 0) is not None
        rests.append(watch.next_allowance(100).pause_s)
        assert rests[: CHUNKS * 3 // 4] == [0.0] * (CHUNKS * 3 // 4)
        under_pressure = rests[CHUNKS * 3 // 4 :]
        assert under_pressure == sorted(set(under_pressure))
        assert (under_pressure[0], under_pressure[-1]) == pytest.approx((MIN_PAUSE_S, MAX_PAUSE_S))


def test_a_full_slab_admits_batches_when_messages_are_discarded() -> None:
    with new_slab(GEOMETRY) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        while pool.allocate(1, 0) is not None:
            pass
        assert pressure(slab, pool, senders_wait=False).next_allowance(100) == pytest.approx(
            (MAX_MESSAGES, MAX_PAUSE_S)
        )


@pytest.mark.parametrize(("chunks_a_message", "long"), [(1, False), (0.001, True)])
def test_a_round_takes_only_a_part_of_the_free_chunks(chunks_a_message: float, long: bool) -> None:
    with new_slab(replace(GEOMETRY, chunks=4096)) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        watch = pressure(slab, pool, senders_wait=False)
        taken = free = 4096
        while pool.free_count > 512:
            free, (messages, _) = pool.free_count, watch.next_allowance(100)
            for _ in range(max(1, round(messages * chunks_a_message))):
                pool.allocate(1, 0)
            taken = free - pool.free_count
        assert taken <= free // PART_DIVISOR * 2
        assert (watch.next_allowance(100).message_count == MAX_MESSAGES) == long


def test_a_full_slab_admits_nothing_when_senders_are_blocked() -> None:
    with new_slab(GEOMETRY) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        while pool.allocate(1, 0) is not None:
            pass
        assert pressure(slab, pool, senders_wait=True).next_allowance(0) == (0, MAX_PAUSE_S)


def test_one_small_message_is_admitted_without_room_for_a_large_one() -> None:
    with new_slab(GEOMETRY) as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        watch = pressure(slab, pool, senders_wait=True)
        for _ in range(CHUNKS - 2):
            pool.allocate(1, 0)
        assert watch.next_allowance(100).message_count == 1
        assert watch.next_allowance(10_000).message_count == 1
        assert watch.next_allowance(20_000).message_count == 0


def test_delivered_messages_make_room() -> None:
    with new_slab(GEOMETRY) as slab:
        daemon = Input(slab, topics=[(b"t", 4)])
        watch = pressure(slab, daemon.pool, senders_wait=True)
        segments = []
        while watch.next_allowance(LARGEST).message_count:
            daemon.receive([datagram(b"t", bytes(30_000))])
            segments += daemon.close_all()
        assert watch.next_allowance(LARGEST) == (0, MAX_PAUSE_S)
        set_state(slab, segments, RunState.DELIVERED)
        assert watch.next_allowance(LARGEST).message_count > 0


sizes = st.integers(0, 200) | st.integers(0, LARGEST - 100) | st.sampled_from([8000, 8192, LARGEST - 100])


@given(st.integers(0, 2**32), st.lists(st.lists(sizes, min_size=1, max_size=BATCH), max_size=60))
@examples(30)
def test_block_mode_admits_only_messages_that_find_room(seed: int, arriving: list[list[int]]) -> None:
    """Messages of any size and topic arrive; those in the slab are delivered at random times, in any order."""
    rng = random.Random(seed)
    topics = [(b"t%d" % number, 3) for number in range(6)]
    names = [*(name for name, _ in topics), b"new", b"x" * 249]
    with new_slab(GEOMETRY) as slab:
        daemon = Input(slab, topics=topics)
        watch = pressure(slab, daemon.pool, senders_wait=True)
        segments = []
        waiting = [
            datagram(rng.choice(names), bytes(size), partition_key=rng.choice([None, rng.randrange(9)]))
            for batch in arriving
            for size in batch
        ]
        for _ in range(len(arriving)):
            messages = watch.next_allowance(len(waiting[0])).message_count if waiting else 0
            if messages:
                assert not daemon.receive(waiting[:messages]).no_room
                del waiting[:messages]
            if rng.random() < 0.3:
                daemon.lanes.close_all()
            segments += daemon.lanes.drain_closed()
            if rng.random() < 0.4:
                rng.shuffle(segments)
                done = [segments.pop() for _ in range(rng.randrange(len(segments) + 1))]
                set_state(slab, done, RunState.DELIVERED)


def test_block_mode_delivers_everything_without_overfilling() -> None:
    """The messages exceed the slab's size and are delivered as they arrive."""
    rng = random.Random(5)
    waiting = [datagram(b"t%d" % rng.randrange(5), bytes(rng.randrange(LARGEST - 100))) for _ in range(300)]
    with new_slab(GEOMETRY) as slab:
        daemon = Input(slab, topics=[(b"t%d" % number, 3) for number in range(5)])
        watch = pressure(slab, daemon.pool, senders_wait=True)
        rounds = 0
        while waiting:
            rounds += 1
            assert rounds < 10_000
            daemon.now_ms += 10
            if messages := watch.next_allowance(len(waiting[0])).message_count:
                assert not daemon.receive(waiting[:messages]).no_room
                del waiting[:messages]
            elif rng.random() < 0.5:
                set_state(slab, daemon.close_all(), RunState.DELIVERED)


def test_stuck_chunks_count_neither_as_used_nor_as_free() -> None:
    """Nine tenths are stuck; the input rests once less than a quarter of the last tenth is free."""
    with new_slab(replace(GEOMETRY, chunks=640)) as slab:
        sender = Input(slab, topics=[(b"t", 1)])
        pool = sender.pool
        watch = pressure(slab, pool, senders_wait=False)
        while pool.free_count > 64:
            sender.receive([datagram(b"t", bytes(7000))] * 4)
        sender.close_all()
        assert watch.next_allowance(100).pause_s > MIN_PAUSE_S
        assert pool.allocate(1, sender.now_ms + STUCK_AFTER_MS + 1) is not None
        for _ in range(9):
            pool.reclaim_idle()
        assert watch.next_allowance(100).pause_s == 0.0
        while pool.free_count > 16:
            assert pool.allocate(1, sender.now_ms + STUCK_AFTER_MS + 1) is not None
        assert watch.next_allowance(100).pause_s >= MIN_PAUSE_S
