"""Ids and periods of discard reports over restarts of the status process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.discards import DiscardReports
from support.slabs import new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.pages.discards import Report

START_S: Final = 1_700_000_000


def begin(slab: Slab, interval_s: int, after_s: int) -> DiscardReports:
    """Return the reports of a new status process."""
    return DiscardReports(slab, interval_s, (START_S + after_s) * 1000, lambda: None)


def unfinished(reports: DiscardReports, after_s: int) -> tuple[int, int]:
    """Return id and start of the unfinished report, the start in seconds since the daemon's."""
    report: Report = reports.page((START_S + after_s) * 1000).unfinished_report
    return report.id, report.start_time - START_S


def start_daemon(slab: Slab, after_s: int) -> None:
    slab.store_signed(slab.row_at(lay.ROW_SUPERVISOR) + lay.ROW_STARTED_MS, (START_S + after_s) * 1000)


def test_ids_do_not_go_back_when_the_status_process_restarts_after_a_reload() -> None:
    with new_slab() as slab:
        start_daemon(slab, 0)
        assert unfinished(begin(slab, 60, 0), 0) == (0, 0)
        reports = begin(slab, 60, 6030)
        assert unfinished(reports, 6030) == (100, 6000)
        reports.apply_interval(600)
        assert unfinished(begin(slab, 600, 6040), 6590) == (100, 6000)
        assert unfinished(begin(slab, 600, 6600), 6600) == (101, 6600)
        assert unfinished(begin(slab, 60, 6780), 6780) == (104, 6780)


def test_ids_do_not_repeat_when_the_status_process_restarts_with_a_clock_set_back() -> None:
    with new_slab() as slab:
        start_daemon(slab, 0)
        assert unfinished(begin(slab, 60, 6000), 6000) == (100, 6000)
        assert unfinished(begin(slab, 60, 3010), 3010) == (101, 3000)


def test_the_reports_of_a_new_daemon_begin_with_0() -> None:
    with new_slab() as slab:
        start_daemon(slab, 0)
        assert unfinished(begin(slab, 60, 6000), 6000) == (100, 6000)
        start_daemon(slab, 6007)
        assert unfinished(begin(slab, 60, 6008), 6008) == (0, 6007)
        assert unfinished(begin(slab, 60, 6070), 6070) == (1, 6067)
