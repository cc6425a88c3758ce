"""The discard reports of this process: filled by the loop, read by the threads that answer requests."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from bruce_mp.status.discards import DiscardsPage, show_report
from bruce_mp.status.header import read_header
from bruce_mp.telemetry.reports import ReportBook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.discards import Report
    from bruce_mp.telemetry.events import Event

__all__ = ["Reports"]


class Reports:
    """A `ReportBook` behind a lock.

    `interval` in seconds.  Periods are counted from the start of the daemon, so that a restart of status alone changes
    neither their bounds nor their numbers.  `on_unread` is called when a period ended in which nobody had asked.
    """

    def __init__(self, slab: Slab, interval: int, now_ms: int, on_unread: Callable[[], None]) -> None:
        self._slab = slab
        self._book = ReportBook(interval, read_header(slab, now_ms)["since"] or now_ms // 1000, now_ms / 1000)
        self._on_unread = on_unread
        self._lock = Lock()

    def change(self, interval: int) -> None:
        """From now on periods are so long, the one in progress too."""
        with self._lock:
            self._book.interval = interval

    def record(self, events: Iterable[Event], now_ms: int) -> None:
        """Put events into the report of the present period."""
        with self._lock:
            self._rotate(now_ms)
            for event in events:
                self._book.record(event, now_ms / 1000)

    def rotate(self, now_ms: int) -> None:
        """Finish the report whose period is over."""
        with self._lock:
            self._rotate(now_ms)

    def _rotate(self, now_ms: int) -> None:
        finished = self._book.rotate(now_ms / 1000)
        if finished is not None and not finished.was_read:
            self._on_unread()

    def peek(self, now_ms: int) -> list[Report]:
        """The report in progress and the one before, if there is one, without counting as their reader."""
        with self._lock:
            self._rotate(now_ms)
            return [show_report(report) for report in (self._book.unfinished, *self._book.finished[:1])]

    def page(self, now_ms: int) -> DiscardsPage:
        """The page `/discards` as of now."""
        with self._lock:
            self._rotate(now_ms)
            self._book.unfinished.was_read = True
            unfinished = show_report(self._book.unfinished)
            finished = [show_report(report) for report in self._book.finished]
        return DiscardsPage(
            **read_header(self._slab, now_ms),
            interval=self._book.interval,
            unfinished_report=unfinished,
            finished_report=finished[0] if finished else None,
            finished_reports=finished,
        )
