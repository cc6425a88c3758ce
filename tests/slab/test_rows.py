"""Transactions of process rows: after a kill at any store, a new row completes them or finds no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.kernels import split_by_partition
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS, ProcessRow
from bruce_mp.slab.runs import Segment, read_record, read_run, segment_records, segment_words, split_run
from support.crash_images import CrashImages, crash_images
from support.slabs import DISPATCHER_ROW, INPUT_ROW, Input, datagram, put_in_landing_zone, set_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.file import Slab

DELIVERED, REASON = 1, 14
NESTED_EVERY = 5


def regions(slab: Slab, row: int) -> list[range]:
    """Return the ranges of the file that a row's transaction may write."""
    geometry = slab.geometry
    row_at = geometry.rows_at + row * lay.ROW_BYTES
    return [
        range(row_at, row_at + lay.ROW_BYTES),
        range(geometry.landing_at, geometry.landing_slots_at),
        range(geometry.chunks_at, geometry.file_size),
    ]


def in_flight(slab: Slab) -> list[Segment]:
    """Return a whole run, a split one and a part of a split one."""
    sender = Input(slab, topics=[(b"t1", 3), (b"t2", 2)])
    sender.receive([datagram(b"t1", b"a"), datagram(b"t1", b"b"), datagram(b"t2", b"c"), datagram(b"t2", b"d")])
    sender.receive([datagram(b"new", b"x", partition_key=key) for key in (0, 1, 0)])
    shared, whole, cut = sender.close_all()
    split_run(slab, cut.chunk, cut.run)
    _, (_, part), _ = split_by_partition(slab, shared, [4, 5])
    segments = [whole, cut, part]
    set_state(slab, segments, state_word(RunState.IN_FLIGHT, 0))
    return segments


def words(slab: Slab, segments: list[Segment]) -> list[int]:
    return [slab.words[at] for segment in segments for at in segment_words(slab, segment)]


def reasons(slab: Slab, segments: list[Segment]) -> set[int]:
    found = set()
    for segment in segments:
        run = read_run(slab, segment.chunk, segment.run)
        if run.state is RunState.SPLIT:
            found |= {read_record(slab, segment.chunk, at).reason for at, _ in segment_records(slab, segment)}
        else:
            found.add(run.reason)
    return found


def check_each_image(slab: Slab, row: int, images: CrashImages, check: Callable[[], object]) -> None:
    """Recover the row in each image, also in a process that is itself killed at any store."""
    for count in images:
        if count % NESTED_EVERY == 0:
            nested = crash_images(slab, regions(slab, row), lambda: ProcessRow.recover(slab, row))
            for _ in nested:
                ProcessRow.recover(slab, row)
                check()
            images.restore(count)
        ProcessRow.recover(slab, row)
        check()


def test_settle_is_atomic_at_any_store(slab: Slab) -> None:
    segments = in_flight(slab)
    put_in_landing_zone(slab, [b"of the input, which is in the middle of its batch"])
    row = ProcessRow(slab, DISPATCHER_ROW)
    row.counters[DELIVERED] = 100
    before = set(words(slab, segments))
    increments = {DELIVERED: sum(segment.records for segment in segments), 3: 7}
    outcomes = []

    def check() -> None:
        again = ProcessRow(slab, DISPATCHER_ROW)
        assert again.version % 2 == 0
        settled = set(words(slab, segments)) == {RunState.DISCARDED}
        assert settled or set(words(slab, segments)) == before
        assert (again.counters[DELIVERED], again.counters[3]) == (
            (100 + increments[DELIVERED], 7) if settled else (100, 0)
        )
        assert not settled or reasons(slab, segments) == {REASON}
        outcomes.append(settled)

    images = crash_images(
        slab, regions(slab, DISPATCHER_ROW), lambda: row.settle(segments, RunState.DISCARDED, REASON, increments)
    )
    assert len(images) > 15
    check_each_image(slab, DISPATCHER_ROW, images, check)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes)


def test_commit_landed_is_atomic_at_any_store(slab: Slab) -> None:
    row = ProcessRow(slab, INPUT_ROW)
    slab.longs[landing_zone.base_at(slab) >> 3] = 1000
    put_in_landing_zone(slab, [b"a", b"bb", b"", b"dddd"])
    row.begin_batch()
    outcomes = []

    def check() -> None:
        again = ProcessRow(slab, INPUT_ROW)
        landed = landing_zone.landed_lengths(slab)
        assert landed in ([1, 2, 0, 4], [])
        assert slab.longs[landing_zone.base_at(slab) >> 3] == (1000 if landed else 1004)
        assert again.counters[0] == (0 if landed else 4)
        assert again.version % 2 == (1 if landed else 0)  # the books stay open until the batch is landed
        outcomes.append(not landed)

    images = crash_images(slab, regions(slab, INPUT_ROW), lambda: row.commit_landed(4, {0: 4}))
    check_each_image(slab, INPUT_ROW, images, check)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes)


def test_books_opened_without_a_batch_are_closed_at_restart(slab: Slab) -> None:
    row = ProcessRow(slab, INPUT_ROW)
    row.begin_batch()
    assert row.version % 2 == 1
    assert ProcessRow(slab, INPUT_ROW).version % 2 == 1
    assert ProcessRow.recover(slab, INPUT_ROW).version % 2 == 0


def test_the_version_changes_with_every_transaction(slab: Slab) -> None:
    row = ProcessRow(slab, DISPATCHER_ROW)
    versions = [row.version]
    for _ in range(3):
        row.settle([], RunState.DELIVERED, 0, {DELIVERED: 1})
        versions.append(row.version)
    assert versions == [0, 2, 4, 6]


def test_a_repeated_transaction_leaves_reclaimed_chunks_untouched(slab: Slab) -> None:
    """The records of a chunk may be settled before the crash, so that another process owns the chunk."""
    [segment] = _filled(slab, b"old")
    row = ProcessRow(slab, DISPATCHER_ROW)
    images = crash_images(
        slab, regions(slab, DISPATCHER_ROW), lambda: row.settle([segment], RunState.DELIVERED, 0, {1: 1})
    )
    settled = next(count for count in images if words(slab, [segment]) == [RunState.DELIVERED])
    images.restore(settled)
    chunk_at = slab.chunk_at(segment.chunk)
    slab.words[(chunk_at + lay.CHUNK_GENERATION) >> 2] += 1
    slab.words[(chunk_at + segment.run + lay.RUN_GENERATION) >> 2] += 1
    slab.words[(chunk_at + segment.run) >> 2] = RunState.FILLED
    assert ProcessRow.recover(slab, DISPATCHER_ROW).counters[1] == 1
    assert slab.words[(chunk_at + segment.run) >> 2] == RunState.FILLED


def _filled(slab: Slab, value: bytes) -> list[Segment]:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(b"t1", value)])
    return sender.close_all()


def test_a_refused_transaction_changes_nothing(slab: Slab) -> None:
    [segment] = _filled(slab, b"x")
    row = ProcessRow(slab, DISPATCHER_ROW)
    before = bytes(slab.view[slab.geometry.rows_at : slab.geometry.file_size])
    bad = [
        segment._replace(chunk=10**6),
        segment._replace(run=8),
        segment._replace(first=segment.first + 1),
        segment._replace(records=2),
        segment._replace(generation=99),
    ]
    for some in bad:
        with pytest.raises(SlabError):
            row.settle([segment, some], RunState.DELIVERED, 0, {DELIVERED: 2})
    with pytest.raises(SlabError, match=f"at most {MAX_SETTLED_SEGMENTS} segments"):
        row.settle([segment] * (MAX_SETTLED_SEGMENTS + 1), RunState.DELIVERED, 0, {})
    with pytest.raises(SlabError, match="at most 32 counters"):
        row.settle([segment], RunState.DELIVERED, 0, dict.fromkeys(range(33), 1))
    assert bytes(slab.view[slab.geometry.rows_at : slab.geometry.file_size]) == before


def test_the_largest_transaction_is_settled(slab: Slab) -> None:
    [segment] = _filled(slab, b"x")
    row = ProcessRow(slab, DISPATCHER_ROW)
    row.settle([segment] * MAX_SETTLED_SEGMENTS, RunState.DELIVERED, 0, dict.fromkeys(range(32), 5))
    assert list(row.counters[:33]) == [5] * 32 + [0]
    assert words(slab, [segment]) == [RunState.DELIVERED]


def test_a_process_records_its_start(slab: Slab) -> None:
    row = ProcessRow(slab, DISPATCHER_ROW)
    assert row.begin(pid=4711, now_ms=-1) == 1
    assert ProcessRow(slab, DISPATCHER_ROW).begin(pid=4712, now_ms=2) == 2
    assert row.pid == 4712


def test_the_heartbeat_repeats(slab: Slab) -> None:
    row = ProcessRow(slab, DISPATCHER_ROW)
    calls: list[Callable[[], None]] = []
    times = iter([10, 11])
    row.start_heartbeat(lambda _, callback: calls.append(callback), lambda: next(times))
    at = slab.row_at(DISPATCHER_ROW) + lay.ROW_HEARTBEAT_MS
    assert slab.read_signed(at) == 10
    calls[0]()
    assert slab.read_signed(at) == 11
    assert len(calls) == 2
