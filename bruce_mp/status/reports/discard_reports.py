"""Discard reports of the status process: the event loop adds events, and HTTP threads read the reports."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from bruce_mp.discards.reports import ReportBook
from bruce_mp.status.pages.discards import DiscardsPage, report_for_page
from bruce_mp.status.pages.header import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.discards.events import DiscardReportEvent
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.pages.discards import Report

__all__ = ["DiscardReports"]


class DiscardReports:
    """A `ReportBook` that several threads may use.

    `interval` is in seconds. The first period starts with the daemon, so a restart of the status process alone changes
    neither the bounds nor the numbers of the periods. `on_unread` is called for each finished period without a reader.
    """

    def __init__(self, slab: Slab, interval: int, now_ms: int, on_unread: Callable[[], None]) -> None:
        self._slab = slab
        daemon_start = read_header(slab, now_ms)["since"] or now_ms // 1000  # 0 before the first start
        self._book = ReportBook(interval, origin=daemon_start, now=now_ms / 1000)
        self._on_unread = on_unread
        self._lock = Lock()

    def apply_interval(self, interval: int) -> None:
        """Set the length of periods, including the current one."""
        with self._lock:
            self._book.interval = interval

    def record(self, events: Iterable[DiscardReportEvent], now_ms: int) -> None:
        """Add events to the report of the current period."""
        with self._lock:
            self._rotate(now_ms)
            for event in events:
                self._book.record(event, now_ms / 1000)

    def rotate(self, now_ms: int) -> None:
        """Finish the current report if its period is over."""
        with self._lock:
            self._rotate(now_ms)

    def _rotate(self, now_ms: int) -> None:
        finished = self._book.rotate(now_ms / 1000)
        if finished is not None and not finished.was_read:
            self._on_unread()

    def peek(self, now_ms: int) -> list[Report]:
        """Return the unfinished report and the previous one, without marking them as read."""
        with self._lock:
            self._rotate(now_ms)
            return [report_for_page(report) for report in (self._book.unfinished, *self._book.finished[:1])]

    def page(self, now_ms: int) -> DiscardsPage:
        """Build the page `/discards` and mark the unfinished report as read."""
        with self._lock:
            self._rotate(now_ms)
            self._book.unfinished.was_read = True
            unfinished = report_for_page(self._book.unfinished)
            finished = [report_for_page(report) for report in self._book.finished]
        return DiscardsPage(
            **read_header(self._slab, now_ms),
            interval=self._book.interval,
            unfinished_report=unfinished,
            finished_report=finished[0] if finished else None,
            finished_reports=finished,
        )
