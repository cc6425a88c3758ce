"""Discard reports by period, in the status process.

The first event, page request or timer after the end of a period finishes the period's report, and begins the report of
the current period. Whole periods between these two have no report.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.bounded_samples import CountedTimeRange, RecentSamples, add_sender, bounded_entry
from bruce_mp.discards.events import DuplicateEvent, SenderEvent
from bruce_mp.discards.reasons import LISTED_BY_TOPIC, SAMPLED
from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from bruce_mp.discards.events import DiscardEvent, DiscardReportEvent

__all__ = ["MAX_FINISHED", "DiscardReport", "ReportBook", "TopicDiscards"]

MAX_FINISHED: Final = 4
"""Number of finished reports that `/discards` shows, for a reader that misses some periods."""


class TopicDiscards(CountedTimeRange):
    """Discards of one topic; `reasons` has the number of discards by reason."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        super().__init__()
        self.reasons: Counter[DiscardReason] = Counter()


class DiscardReport:
    """Discards of one period.

    * `counts` has the number of discards by reason. `recent` has the samples by reason, for BAD_TOPIC topics.
    * `tcp_disconnects` and `recent_tcp` are the number and the samples of UNCLEAN_DISCONNECT over TCP. `counts`
      and `recent` leave these discards out.
    * `versions` and `api_keys` have the number of discards by unsupported version and unsupported API key.
    * `topics` has the discards by topic, for the reasons of LISTED_BY_TOPIC. `duplicates` has the possible duplicates
      by topic. In both, the topic b"" stands for all topics beyond MAX_ENTRIES.
    * `rejected_senders` has the senders of bad messages, the newest last.
    * `was_read` is True if a client read the report during its period.
    """

    def __init__(self, number: int, start_time: int) -> None:
        self.id = number
        self.start_time = start_time
        self.was_read = False
        self.counts: Counter[DiscardReason] = Counter()
        self.recent = {reason: RecentSamples() for reason in (*SAMPLED, DiscardReason.BAD_TOPIC)}
        self.tcp_disconnects = 0
        self.recent_tcp = RecentSamples()
        self.versions: Counter[int] = Counter()
        self.api_keys: Counter[int] = Counter()
        self.topics: dict[bytes, TopicDiscards] = {}
        self.duplicates: dict[bytes, CountedTimeRange] = {}
        self.rejected_senders: dict[tuple[DiscardReason, int, int], SenderEvent] = {}

    def add(self, event: DiscardReportEvent) -> None:
        if isinstance(event, DuplicateEvent):
            topic_duplicates = bounded_entry(self.duplicates, event.topic, b"", CountedTimeRange)
            topic_duplicates.add(event.count, event.min_timestamp, event.max_timestamp)
        elif isinstance(event, SenderEvent):
            add_sender(self.rejected_senders, event)
        else:
            self._add_discard(event)

    def _add_discard(self, event: DiscardEvent) -> None:
        if event.is_tcp:
            self.tcp_disconnects += event.count
        else:
            self.counts[event.reason] += event.count
        if event.version is not None:
            self.versions[event.version] += event.count
        if event.api_key is not None:
            self.api_keys[event.api_key] += event.count
        for sample in self._samples_of(event):
            recent = self.recent_tcp if event.is_tcp else self.recent[event.reason]
            recent.add(sample)
        if event.reason in LISTED_BY_TOPIC:
            topic_discards = bounded_entry(self.topics, event.topic, b"", TopicDiscards)
            topic_discards.add(event.count, event.min_timestamp, event.max_timestamp)
            topic_discards.reasons[event.reason] += event.count

    @staticmethod
    def _samples_of(event: DiscardEvent) -> tuple[bytes, ...]:
        if event.reason is DiscardReason.BAD_TOPIC:
            return (event.topic,) if event.topic else ()
        return event.samples if event.reason in SAMPLED else ()


class ReportBook:
    """The unfinished report and the last few finished ones. Times are in seconds since 1970.

    The period that starts at `origin` has the given `number`. If the book is opened later, its first report has the
    number that the period has at this interval. A change of `interval` moves the end of the current period, and the
    next periods follow it. A clock that is set back to a time before the current period also ends the period. Numbers
    always increase.
    """

    def __init__(self, interval: int, origin: int, now: float, number: int = 0) -> None:
        self.interval = interval
        self.unfinished = DiscardReport(number, origin)
        self.unfinished = self._following(now) or self.unfinished
        self._finished: deque[DiscardReport] = deque(maxlen=MAX_FINISHED)

    @property
    def finished(self) -> tuple[DiscardReport, ...]:
        """Return the last finished reports, the newest first."""
        return tuple(reversed(self._finished))

    def record(self, event: DiscardReportEvent, now: float) -> None:
        self.rotate(now)
        self.unfinished.add(event)

    def rotate(self, now: float) -> DiscardReport | None:
        """Finish the current report and return it; return None if its period is not over."""
        finished, following = self.unfinished, self._following(now)
        if following is None:
            return None
        self._finished.append(finished)
        self.unfinished = following
        return finished

    def _following(self, now: float) -> DiscardReport | None:
        """Return an empty report for the present period; return None if the unfinished report's is not over."""
        last = self.unfinished
        periods = int((now - last.start_time) // self.interval)  # negative if the clock was set back
        if periods == 0:
            return None
        return DiscardReport(last.id + max(periods, 1), last.start_time + periods * self.interval)
