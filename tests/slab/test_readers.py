"""Reads of a slab while its owner appends, hands over, splits, settles, frees and reopens, in another process."""

from __future__ import annotations

import random
import time
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs, read_each
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import FoundSegment, sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import is_current, segment_records, segment_words
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.held import held_by_topic
from support.children import child
from support.slabs import DISPATCHER_ROW, Input, datagram, new_slab, set_state, slab_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.slab.runs import Segment

SECONDS: Final = 3.0
GEOMETRY: Final = Geometry(chunks=24, topics=16, partitions=16, landing_slots=16, landing_slot_size=32768)
NAMES: Final = [b"t1", b"t2", b"new", b"x" * 300]
PINNED: Final = b"pinned"
ROUTED: Final = state_word(RunState.ROUTED, 1)


def message(arrival: int, rand: random.Random) -> bytes:
    """Return a message with a value that identifies it."""
    size = rand.choice([0, 10, 300, 3000, 9000]) if rand.random() < 0.9 else 20000
    topic = rand.choice(NAMES)
    key = rand.randrange(4) if rand.random() < 0.5 else None
    return datagram(topic, b"%d:%s:" % (arrival, topic) + bytes(size), b"", key)


def own(path: Path) -> None:
    """Do every operation of the processes on a slab, as fast as possible."""
    rand = random.Random(5)
    slab = Slab(path)
    owner = Input(slab, linger_ms=3)
    row = ProcessRow(slab, DISPATCHER_ROW)
    held: list[Segment] = []
    for _ in count():
        base = owner.base
        owner.receive([message(base + index, rand) for index in range(rand.randrange(1, GEOMETRY.landing_slots))])
        owner.now_ms += 5
        owner.lanes.close_due(owner.now_ms)
        for segment in kernels.claim(slab, owner.lanes.drain_closed(), RunState.FILLED, ROUTED):
            cut = rand.random() < 0.5
            held += [part for _, part in kernels.split_by_partition(slab, segment, [1, 2])] if cut else [segment]
        rand.shuffle(held)
        while len(held) > 20 or (held and rand.random() < 0.7):
            segment = held.pop()
            row.settle([segment], RunState.DELIVERED, 0, {Counter.MsgDelivered: segment.records})


def pin(path: Path) -> list[FoundSegment]:
    """Return runs that stay unchanged, whole and split, large and small."""
    slab = Slab(path)
    owner = Input(slab, topics=[(b"t1", 3), (b"t2", 1), (PINNED, 2)])
    for sizes in ([5, 5, 5], [9000], [3000, 3000]):
        base = owner.base
        owner.receive([datagram(PINNED, b"%d:%s:" % (base + i, PINNED) + bytes(size)) for i, size in enumerate(sizes)])
        segments = kernels.claim(slab, owner.close_all(), RunState.FILLED, ROUTED)
        kernels.split_at(slab, segments[-1], 1, 1 << 40)
    found = sweep(slab, {RunState.ROUTED})
    slab.close()
    return found


def check(slab: Slab, found: FoundSegment) -> None:
    """Check that a segment is sound while its generation lasts."""
    try:
        words = {slab.words[at] for at in segment_words(slab, found.segment)}
        records = list(segment_records(slab, found.segment))
    except SlabError:
        # The run was split, grew or is gone.  None of that is possible while `claim` would accept the segment.
        return
    base = slab.chunk_at(found.segment.chunk) + lay.RECORD_HEADER
    values = [(r.arrival, bytes(slab.view[base + at : base + at + r.value_length])) for at, r in records]
    if words != {found.word} or not is_current(slab, found.segment):
        return
    assert len(records) == found.segment.records
    assert sum(len(value) for _, value in values) == found.segment.payload or found.state is RunState.OPEN
    assert values[0][0] == found.arrival
    assert all(value.startswith(b"%d:" % arrival) for arrival, value in values)
    assert len({value.split(b":")[1] for _, value in values}) == 1


@pytest.mark.process
def test_concurrent_readers_never_fail_and_find_held_records() -> None:
    rounds = checked = consistent = 0
    with slab_file(GEOMETRY) as path:
        pinned = pin(path)
        slab = Slab(path)
        with child(own, path) as process:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                found = sweep(slab, set(RunState))
                assert [item for item in found if item.topic == 3] == pinned
                for item in found:
                    check(slab, item)
                runs = list(all_runs(slab))
                assert {item.segment.chunk for item in pinned} <= {chunk for chunk, _, _ in runs}
                held = held_by_topic(slab)
                assert set(held) <= {1, 2, 3, *NAMES}
                assert held[3] == sum(item.segment.records for item in pinned)
                books = count_books(slab)
                assert books.balanced or not books.consistent
                consistent += books.consistent
                checked += len(found)
                rounds += 1
            assert process.exitcode is None
        assert rounds > 50
        assert checked > 500
        assert consistent
        slab.close()


def test_a_chunk_reopened_during_a_read_is_read_again() -> None:
    with slab_file() as path:
        slab = Slab(path)
        owner = Input(slab, topics=[(b"t1", 3)])
        owner.receive([datagram(value=b"x")])
        generation_at = (slab.chunk_at(0) + lay.CHUNK_GENERATION) >> 2
        reads: list[int] = []

        def read(chunk: int) -> list[int]:
            reads.append(chunk)
            if len(reads) == 1:
                slab.words[generation_at] += 1
                return [1]
            return [2]

        assert list(read_each(slab, read)) == [2]
        assert reads == [0, 0]
        slab.close()


def test_a_chunk_reopened_repeatedly_is_skipped() -> None:
    with slab_file() as path:
        slab = Slab(path)
        Input(slab, topics=[(b"t1", 3)]).receive([datagram(value=b"x")])

        def read(chunk: int) -> list[int]:
            slab.words[(slab.chunk_at(chunk) + lay.CHUNK_GENERATION) >> 2] += 1
            return [1]

        assert list(read_each(slab, read)) == []
        slab.close()


def test_a_chunk_released_during_a_read_yields_nothing() -> None:
    """The release overwrites the headers of a span's other chunks, where a record would look like a new header."""
    with new_slab(GEOMETRY) as slab:
        owner = Input(slab, topics=[(b"t1", 1)])
        owner.receive([datagram(b"t1", bytes(9000))])
        set_state(slab, owner.close_all(), RunState.DELIVERED)
        seen: list[int] = []

        def read(chunk: int) -> Iterator[int]:
            owner.pool.reclaim(slab.geometry.chunks)
            seen.append(chunk)
            yield chunk

        assert list(read_each(slab, read)) == []
        assert seen == [0]
        assert owner.pool.free_count == slab.geometry.chunks
