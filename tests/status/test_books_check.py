"""The check of the books against the state words: it finds a difference that lasts, and none that traffic explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.pipeline.stage_counts import has_counts
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.books_check import INTERVAL_MS, BooksCheck, count_unaccounted
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.stages import read_rows
from support.slabs import DISPATCHER_ROW, INPUT_ROW, Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

STEPS_A_PASS = 2


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        yield made


def run_passes(check: BooksCheck, passes: int, start_ms: int = 0) -> int:
    """Run passes one second a step, and return the time after them."""
    for step in range(passes * STEPS_A_PASS):
        check.step(start_ms + 1000 * step, step + 1)
    return start_ms + 1000 * passes * STEPS_A_PASS


def test_words_and_rows_agree(slab: Slab) -> None:
    Input(slab, topics=[(b"t1", 3)]).receive([datagram(b"t1")] * 3)
    check = BooksCheck(slab)
    run_passes(check, 1)
    assert check.verdict == (2, 0)


def test_a_difference_counts_when_two_passes_find_it(slab: Slab, caplog: pytest.LogCaptureFixture) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(b"t1")] * 3)
    set_state(slab, sender.close_all(), RunState.DELIVERED)
    check = BooksCheck(slab)
    now_ms = run_passes(check, 1)
    assert check.verdict.unaccounted == 0
    now_ms = run_passes(check, 1, now_ms)
    assert check.verdict.unaccounted == 3
    run_passes(check, 1, now_ms + INTERVAL_MS)
    assert caplog.text.count("differ by 3 messages") == 1
    assert not has_counts(slab)


def test_a_difference_between_stages_counts_without_traffic(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(b"t1")] * 3)
    set_state(slab, sender.close_all(), RunState.QUEUED)
    check = BooksCheck(slab)
    run_passes(check, 2)
    assert check.verdict.unaccounted == 6


def test_messages_that_come_and_go_during_a_pass_are_no_difference(slab: Slab) -> None:
    sender, settler = Input(slab, topics=[(b"t1", 3)]), ProcessRow(slab, DISPATCHER_ROW)
    sender.receive([datagram(b"t1")] * 5)
    before = read_rows(slab)
    sender.receive([datagram(b"t1")] * 2)
    for records in (7, 2):
        assert count_unaccounted(before, read_rows(slab), {"input": records}) == max(0, 5 - records)
    settled = sender.close_all()
    settler.settle(settled, RunState.DELIVERED, 0, {Counter.MsgDelivered: 7})
    for records in range(8):
        assert count_unaccounted(before, read_rows(slab), {"input": records}) == 0
    assert count_unaccounted(before, read_rows(slab), {"input": 8}) == 1


def test_too_many_records_under_traffic_are_a_difference(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(b"t1")] * 9)
    slab.longs[(slab.row_at(INPUT_ROW) + lay.ROW_COUNTERS) >> 3] -= 5
    check = BooksCheck(slab)
    for step in range(3 * STEPS_A_PASS):
        check.step(1000 * step, step + 1)
        sender.receive([datagram(b"t1")])
    assert check.verdict.unaccounted in range(3, 6)
