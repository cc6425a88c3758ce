"""Held messages by stage from the process rows: equal to the state words, after a kill at any store as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import kernels
from bruce_mp.kernels import assign_sequences
from bruce_mp.pipeline.stage_counts import count_books, has_counts, invalidate_counts, recount
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import Move, ProcessRow
from bruce_mp.slab.runs import split_run
from bruce_mp.slab.tables import PartitionTable
from bruce_mp.telemetry.books import read_books
from bruce_mp.telemetry.counters import Counter
from support.crash_images import crash_images, machine_images
from support.slabs import DISPATCHER_ROW, INPUT_ROW, Input, datagram

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

ROUTED: Final = state_word(RunState.ROUTED, 1)
ASSIGNED: Final = state_word(RunState.ASSIGNED, 0)
QUEUED: Final = state_word(RunState.QUEUED, 0)
IN_FLIGHT: Final = state_word(RunState.IN_FLIGHT, 0)
RETURNED: Final = state_word(RunState.RETURNED, 0)
IMAGES: Final = {"pure": crash_images, "compiled": machine_images}


def routed(slab: Slab) -> list[Segment]:
    """Return three segments that the router holds: a whole run, and two runs of which one is split."""
    sender = Input(slab, topics=[(b"t1", 3), (b"t2", 2)])
    sender.receive([datagram(b"t1", b"a"), datagram(b"t1", b"b"), datagram(b"t2", b"c"), datagram(b"new", b"d")])
    segments = sender.close_all()
    split_run(slab, segments[0].chunk, segments[0].run)
    return kernels.claim(slab, segments, RunState.FILLED, ROUTED)


def regions(slab: Slab) -> list[range]:
    geometry = slab.geometry
    rows = [geometry.rows_at + row * lay.ROW_BYTES for row in (INPUT_ROW, lay.ROW_ROUTER, DISPATCHER_ROW)]
    return [
        *(range(at, at + lay.ROW_REDO + 1024) for at in rows),
        range(geometry.chunks_at, geometry.chunks_at + 4 * lay.CHUNK_BYTES),
    ]


def check(slab: Slab) -> dict[str, int]:
    """Check that rows and words agree, and return the held messages."""
    rows, words = read_books(slab), count_books(slab)
    assert rows.held == words.held
    assert rows.consistent
    assert rows.balanced
    return rows.held


def test_each_move_changes_the_stages_as_the_words_do(slab: Slab) -> None:
    segments = routed(slab)
    router, dispatcher = ProcessRow(slab, lay.ROW_ROUTER), ProcessRow(slab, DISPATCHER_ROW)
    assert check(slab)["router"] == 4
    assert router.move(segments, Move(ROUTED, ASSIGNED, lay.FLOW_ASSIGNED)) == segments
    assert kernels.claim(slab, segments, ASSIGNED, QUEUED) == segments
    assert check(slab)["queued"] == 4
    assert dispatcher.move(segments, Move(QUEUED, IN_FLIGHT, lay.FLOW_SENT)) == segments
    assert check(slab)["in_flight"] == 4
    first, *rest = segments
    dispatcher.settle([first], RunState.DELIVERED, 0, {Counter.MsgDelivered: first.records})
    dispatcher.move(rest, Move(IN_FLIGHT, state_word(RunState.RETURNED_SENT, 0), lay.FLOW_RETURNED_SENT))
    assert check(slab)["router"] == sum(segment.records for segment in rest)


def test_a_move_skips_segments_in_another_state(slab: Slab) -> None:
    segments = routed(slab)
    router = kernels.ProcessRow(slab, lay.ROW_ROUTER)
    move = Move(ROUTED, ASSIGNED, lay.FLOW_ASSIGNED)
    assert router.move(segments[:1], move) == segments[:1]
    assert router.move(segments, move) == segments[1:]
    assert check(slab)["queued"] == 4


@pytest.mark.process
def test_rows_and_words_agree_after_a_kill_at_any_store_of_a_move(slab: Slab, with_variant: str) -> None:
    segments, move = routed(slab), Move(ROUTED, ASSIGNED, lay.FLOW_ASSIGNED)
    row = kernels.ProcessRow(slab, lay.ROW_ROUTER)
    found = set()
    for _ in IMAGES[with_variant](slab, regions(slab), lambda: row.move(segments, move)):
        assert read_books(slab).balanced
        ProcessRow.recover(slab, lay.ROW_ROUTER)
        found.add(check(slab)["queued"])
    assert found == {0, 4}


@pytest.mark.process
def test_rows_and_words_agree_after_a_kill_at_any_store_of_a_batch(slab: Slab, with_variant: str) -> None:
    segments = routed(slab)
    ProcessRow(slab, lay.ROW_ROUTER).move(segments, Move(ROUTED, QUEUED, lay.FLOW_ASSIGNED))
    table = PartitionTable(slab)
    table.ensure_entry(1, 0)
    row, entry = kernels.ProcessRow(slab, DISPATCHER_ROW), table.entry_at(1, 0)
    build = Move(QUEUED, IN_FLIGHT, lay.FLOW_SENT)
    found = set()
    for _ in IMAGES[with_variant](
        slab, regions(slab), lambda: assign_sequences(slab, row, [(entry, 1, 0, segments)], build, is_numbered=True)
    ):
        ProcessRow.recover(slab, DISPATCHER_ROW)
        found.add(check(slab)["in_flight"])
    assert found == {0, 4}


def test_an_open_transaction_counts_as_complete(slab: Slab) -> None:
    segments = routed(slab)
    row = ProcessRow(slab, lay.ROW_ROUTER)
    row._apply_redo = lambda: None  # type: ignore[method-assign]  # it stops when the record is valid
    row.move(segments, Move(ROUTED, ASSIGNED, lay.FLOW_ASSIGNED))
    books = read_books(slab)
    assert books.consistent
    assert books.held["queued"] == 4


def test_a_reading_of_a_row_that_always_changes_is_inconsistent(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_books(slab).consistent
    numbers = iter(range(10**6))
    monkeypatch.setattr("bruce_mp.telemetry.stages._version_and_redo_word", lambda *_: (next(numbers), 0))
    assert not read_books(slab).consistent


def test_a_slab_of_a_release_without_counts_is_counted_once(slab: Slab) -> None:
    segments = routed(slab)
    ProcessRow(slab, lay.ROW_ROUTER).begin(1, 0)
    assert has_counts(slab)
    for at in (lay.FLOW_ASSIGNED, lay.FLOW_SENT):  # a release without counts moves messages and leaves these
        assert ProcessRow(slab, lay.ROW_ROUTER).counters[at] == 0
    kernels.claim(slab, segments, ROUTED, IN_FLIGHT)
    invalidate_counts(slab, lay.ROW_ROUTER)
    assert not has_counts(slab)
    recount(slab)
    assert has_counts(slab)
    assert check(slab)["in_flight"] == 4
