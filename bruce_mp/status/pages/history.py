"""The page `/history`: rates and latencies of a period, of a topic or of the whole daemon.

Separate because each page has its own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.status.pages.header import Page, read_header
from bruce_mp.status.pages.text import topic_bytes

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.history.history_recorder import HistoryRecorder
    from bruce_mp.status.history.rates import Series

__all__ = ["HistoryPage", "read_history"]


class HistoryPage(Page, frozen=True, kw_only=True):
    """JSON of `/history`; an empty topic is the whole daemon."""

    period: str
    topic: str
    series: Series


def read_history(slab: Slab, recorder: HistoryRecorder, period: str, topic: str, now_ms: int) -> HistoryPage:
    """Read the series of a period of `history_file.PERIODS`. Raise HistoryError if the history file cannot be read."""
    series = recorder.series(period, topic_bytes(topic), now_ms // 1000)
    return HistoryPage(**read_header(slab, now_ms), period=period, topic=topic, series=series)
