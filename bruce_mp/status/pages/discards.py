"""The page `/discards`: counts and samples of the messages discarded in the current period and in finished periods.

Fields and lines have Dory's names, because tools for Dory read this page; Dory lacks `finished_reports`,
`unsupported_msg_api_key`, `culprits` (the rejected senders) and the `reasons` of a topic. Lists of samples, of rejected
senders and of finished reports begin with the newest entry; the other lists are sorted.
"""

from __future__ import annotations

from collections import Counter as Tally
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.discards.reasons import CAUSED_BY_FAULT, EXPLANATIONS
from bruce_mp.discards.reports import ReportBook
from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.text import base64_text, bracketed, stamp, topic_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.discards.events import DiscardReportEvent
    from bruce_mp.discards.reports import DiscardReport, TopicDiscards
    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.books import Books

__all__ = [
    "DiscardReports",
    "DiscardSummary",
    "DiscardsPage",
    "ReasonLine",
    "Report",
    "discards_text",
    "summarize_discards",
]


class ApiKeyCount(msgspec.Struct, frozen=True):
    api_key: int
    count: int


class VersionCount(msgspec.Struct, frozen=True):
    version: int
    count: int


class TopicCount(msgspec.Struct, frozen=True):
    topic: str
    count: int


class DuplicateTopic(msgspec.Struct, frozen=True):
    """Number of possible duplicates of a topic, and the range of their timestamps (given by the clients, in ms)."""

    topic: str
    min_timestamp: int
    max_timestamp: int
    count: int


class DiscardTopic(DuplicateTopic, frozen=True, kw_only=True):
    """Number of discarded messages of a topic (`count`), also by reason, and the range of their timestamps."""

    reasons: dict[str, int]


class RejectedSenderLine(msgspec.Struct, frozen=True):
    """Local process that sent malformed or refused messages.

    `count` messages of the process were discarded for `reason`; `msg` is the start of the latest one, in base64.
    """

    reason: str
    pid: int
    uid: int
    command: str
    count: int
    msg: str


class Report(msgspec.Struct, frozen=True):
    """Discard report of one period. Samples are in base64; `start_time` is in seconds since the epoch."""

    id: int
    start_time: int
    malformed_msg_count: int
    unix_stream_unclean_disconnect_count: int
    tcp_unclean_disconnect_count: int
    unsupported_api_key_msg_count: int
    unsupported_version_msg_count: int
    bad_topic_msg_count: int
    recent_malformed: list[str]
    unix_stream_unclean_disconnect: list[str]
    tcp_unclean_disconnect: list[str]
    unsupported_msg_version: list[VersionCount]
    unsupported_msg_api_key: list[ApiKeyCount]
    recent_bad_topic: list[str]
    recent_too_long_msg: list[str]
    rate_limit_discard: list[TopicCount]
    discard_topic: list[DiscardTopic]
    possible_duplicate_topic: list[DuplicateTopic]
    culprits: list[RejectedSenderLine]


class DiscardsPage(Page, frozen=True, kw_only=True, omit_defaults=True):
    """JSON of `/discards`.

    `interval` is the length of a period in seconds. `finished_report` is the latest finished report; it is absent in
    the first period.
    """

    interval: int
    unfinished_report: Report
    finished_report: Report | None = None
    finished_reports: list[Report]


class DiscardReports:
    """A `ReportBook` that several threads may use.

    The first period starts with the daemon. The slab has number and start of the current period, so that after a
    restart of the status process the numbers do not go back. It calls `on_unread` for each finished period in which no
    client read the report.
    """

    def __init__(self, slab: Slab, interval_s: int, now_ms: int, on_unread: Callable[[], None]) -> None:
        self._slab = slab
        # The start is 0 if no supervisor has stored it yet.
        self._daemon_started_ms = slab.read_signed(slab.row_at(lay.ROW_SUPERVISOR) + lay.ROW_STARTED_MS)
        self._period_at = slab.row_at(lay.ROW_STATUS) + lay.ROW_STATUS_REPORT
        number, start_s, daemon_started_ms = lay.REPORT_PERIOD.unpack_from(slab.view, self._period_at)
        if not self._daemon_started_ms or daemon_started_ms != self._daemon_started_ms:
            number, start_s = 0, (self._daemon_started_ms or now_ms) // 1000
        self._book = ReportBook(interval_s, start_s, now_ms / 1000, number)
        self._on_unread = on_unread
        self._lock = Lock()
        self._store_period()

    def _store_period(self) -> None:
        # A crash between the stores leaves a number that is not used again, with the earlier start.
        report = self._book.unfinished
        for index, value in enumerate((report.id, report.start_time, self._daemon_started_ms)):
            self._slab.store_signed(self._period_at + 8 * index, value)

    def apply_interval(self, interval_s: int) -> None:
        """Set the length of the periods, including the current one."""
        with self._lock:
            self._book.interval = interval_s

    def record(self, events: Iterable[DiscardReportEvent], now_ms: int) -> None:
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
        if finished is None:
            return
        self._store_period()
        if not finished.was_read:
            self._on_unread()

    def peek(self, now_ms: int) -> list[Report]:
        """Return the unfinished report, and the latest finished report if there is one. Do not mark them as read."""
        with self._lock:
            self._rotate(now_ms)
            return [_report(report) for report in (self._book.unfinished, *self._book.finished[:1])]

    def page(self, now_ms: int) -> DiscardsPage:
        """Build the page `/discards` and mark the unfinished report as read."""
        with self._lock:
            self._rotate(now_ms)
            self._book.unfinished.was_read = True
            unfinished, *finished = map(_report, (self._book.unfinished, *self._book.finished))
        return DiscardsPage(
            **read_header(self._slab, now_ms),
            interval=self._book.interval,
            unfinished_report=unfinished,
            finished_report=finished[0] if finished else None,
            finished_reports=finished,
        )


def _report(report: DiscardReport) -> Report:
    counts, recent = report.counts, report.recent
    topics = sorted(report.topics.items())
    return Report(
        id=report.id,
        start_time=report.start_time,
        malformed_msg_count=counts[DiscardReason.MALFORMED],
        unix_stream_unclean_disconnect_count=counts[DiscardReason.UNCLEAN_DISCONNECT],
        tcp_unclean_disconnect_count=report.tcp_disconnects,
        unsupported_api_key_msg_count=counts[DiscardReason.UNSUPPORTED_API_KEY],
        unsupported_version_msg_count=counts[DiscardReason.UNSUPPORTED_VERSION],
        bad_topic_msg_count=counts[DiscardReason.BAD_TOPIC],
        recent_malformed=_base64(recent[DiscardReason.MALFORMED].newest_first),
        unix_stream_unclean_disconnect=_base64(recent[DiscardReason.UNCLEAN_DISCONNECT].newest_first),
        tcp_unclean_disconnect=_base64(report.recent_tcp.newest_first),
        unsupported_msg_version=[VersionCount(*item) for item in sorted(report.versions.items())],
        unsupported_msg_api_key=[ApiKeyCount(*item) for item in sorted(report.api_keys.items())],
        recent_bad_topic=[topic_text(name) for name in recent[DiscardReason.BAD_TOPIC].newest_first],
        recent_too_long_msg=_base64(recent[DiscardReason.LONG_MSG].newest_first),
        rate_limit_discard=[
            TopicCount(topic_text(topic), count)
            for topic, discards in topics
            if (count := discards.reasons[DiscardReason.RATE_LIMIT])
        ],
        discard_topic=[_discard_topic(*item) for item in topics],
        possible_duplicate_topic=[
            DuplicateTopic(topic_text(topic), times.min_timestamp, times.max_timestamp, times.count)
            for topic, times in sorted(report.duplicates.items())
        ],
        culprits=[
            RejectedSenderLine(each.reason.name, each.pid, each.uid, each.command, each.count, base64_text(each.sample))
            for each in reversed(report.rejected_senders.values())
        ],
    )


def _base64(samples: Iterable[bytes]) -> list[str]:
    return [base64_text(sample) for sample in samples]


def _discard_topic(topic: bytes, discards: TopicDiscards) -> DiscardTopic:
    times = (discards.min_timestamp, discards.max_timestamp)
    reasons = {reason.name: count for reason, count in discards.reasons.items()}
    return DiscardTopic(topic_text(topic), *times, discards.count, reasons=reasons)


# --- text form --------------------------------------------------------------------------------------------------------


def discards_text(page: DiscardsPage) -> str:
    lines = [*header_lines(page), f"report interval in seconds: {page.interval}", ""]
    lines += ["current (unfinished) reporting period:", *_report_lines(page.unfinished_report)]
    if page.finished_report is not None:
        lines += ["", "latest finished reporting period:", *_report_lines(page.finished_report)]
    return "\n".join([*lines, ""])


def _report_lines(report: Report) -> Iterator[str]:
    yield f"    report ID: {report.id}"
    yield f"    start time: {stamp(report.start_time)}"
    yield f"    malformed msg count: {report.malformed_msg_count}"
    yield f"    UNIX stream unclean disconnect count: {report.unix_stream_unclean_disconnect_count}"
    yield f"    TCP unclean disconnect count: {report.tcp_unclean_disconnect_count}"
    yield f"    unsupported API key msg count: {report.unsupported_api_key_msg_count}"
    yield f"    unsupported version msg count: {report.unsupported_version_msg_count}"
    yield f"    bad topic msg count: {report.bad_topic_msg_count}"
    for lines in _detail_lines(report):
        if lines:
            yield ""
            yield from (f"    {line}" for line in lines)


def _detail_lines(report: Report) -> tuple[list[str], ...]:
    return (
        [f"recent malformed msg: {bracketed(text)}" for text in report.recent_malformed],
        [f"recent UNIX stream unclean disconnect msg: {bracketed(t)}" for t in report.unix_stream_unclean_disconnect],
        [f"recent TCP unclean disconnect msg: {bracketed(text)}" for text in report.tcp_unclean_disconnect],
        [f"unsupported msg version: {item.version} count: {item.count}" for item in report.unsupported_msg_version],
        [f"unsupported msg API key: {item.api_key} count: {item.count}" for item in report.unsupported_msg_api_key],
        [f"recent bad topic: {bracketed(name)}" for name in report.recent_bad_topic],
        [f"recent too long msg: {bracketed(text)}" for text in report.recent_too_long_msg],
        [f"rate limit discard topic: {bracketed(item.topic)} count {item.count}" for item in report.rate_limit_discard],
        [f"discard topic: {_topic_line(item)}{_reasons(item)}" for item in report.discard_topic],
        [f"possible duplicate topic: {_topic_line(item)}" for item in report.possible_duplicate_topic],
        [_sender_line(item) for item in report.culprits],
    )


def _sender_line(item: RejectedSenderLine) -> str:
    sender = f"process {item.pid} {bracketed(item.command)} of user {item.uid}"
    return f"sent by {sender}: {item.reason} count {item.count} msg {bracketed(item.msg)}"


def _topic_line(item: DuplicateTopic) -> str:
    return f"{bracketed(item.topic)} begin [{item.min_timestamp}] end [{item.max_timestamp}] count {item.count}"


def _reasons(item: DiscardTopic) -> str:
    return "".join(f" {reason} {count}" for reason, count in item.reasons.items())


# --- the dashboard's summary ------------------------------------------------------------------------------------------

MAX_TOPICS: Final = 20
"""Limit of the topics on the dashboard; it shows the topics with the most discards."""
MAX_SAMPLES: Final = 5
"""Limit of the samples of each reason on the dashboard, and limit of the rejected senders."""


class ReasonLine(msgspec.Struct, frozen=True):
    """Number of messages discarded for a reason: since the slab was created, in the last minute and in the last hour.

    `meaning` explains the reason in a clause. `is_fault` is True if the daemon or the cluster is at fault; `/healthz`
    reports such discards as a problem.
    """

    reason: str
    total: int
    minute: int
    hour: int
    is_fault: bool
    meaning: str


class TopicDiscardLine(msgspec.Struct, frozen=True):
    """Number of discarded messages of a topic. The line "" sums the topics for which a report had no room."""

    topic: str
    count: int
    reasons: dict[str, int]


class SampleLine(msgspec.Struct, frozen=True):
    """Sample of a discarded message: its first bytes in base64 (`data`), or else the name of its unknown `topic`."""

    reason: str
    data: str | None = None
    topic: str | None = None


class DiscardSummary(msgspec.Struct, frozen=True):
    """Discards by reason, and details of the discards since `since`, in seconds since the epoch.

    The details come from the current report and the previous one. `topics` has the topics with the most discards;
    `topic_count` is the number of all topics with discards. `samples` has the newest samples of each reason.
    """

    since: int
    reasons: list[ReasonLine]
    topics: list[TopicDiscardLine]
    topic_count: int
    samples: list[SampleLine]
    culprits: list[RejectedSenderLine]


_SAMPLE_FIELDS: Final[Mapping[DiscardReason, tuple[Callable[[Report], list[str]], ...]]] = {
    DiscardReason.MALFORMED: (lambda report: report.recent_malformed,),
    DiscardReason.UNCLEAN_DISCONNECT: (
        lambda report: report.unix_stream_unclean_disconnect,
        lambda report: report.tcp_unclean_disconnect,
    ),
    DiscardReason.LONG_MSG: (lambda report: report.recent_too_long_msg,),
}
"""Readers of the fields of a report that hold the samples of a reason."""


def summarize_discards(
    books: Books,
    in_minute: Mapping[DiscardReason, int],
    in_hour: Mapping[DiscardReason, int],
    reports: list[Report],
) -> DiscardSummary:
    """Summarize the discards for the dashboard. `reports` begins with the unfinished report."""
    topics = _topics(reports)
    return DiscardSummary(
        since=reports[-1].start_time,
        reasons=[
            _reason_line(DiscardReason[name], total, in_minute, in_hour)
            for name, total in sorted(books.discarded.items(), key=lambda item: -item[1])
        ],
        topics=topics[:MAX_TOPICS],
        topic_count=len(topics),
        samples=_samples(reports),
        culprits=[sender for report in reports for sender in report.culprits][:MAX_SAMPLES],
    )


def _reason_line(
    reason: DiscardReason, total: int, in_minute: Mapping[DiscardReason, int], in_hour: Mapping[DiscardReason, int]
) -> ReasonLine:
    return ReasonLine(
        reason.name,
        total,
        in_minute.get(reason, 0),
        in_hour.get(reason, 0),
        reason in CAUSED_BY_FAULT,
        EXPLANATIONS[reason],
    )


def _topics(reports: Iterable[Report]) -> list[TopicDiscardLine]:
    counts: dict[str, Tally[str]] = {}
    for report in reports:
        for item in report.discard_topic:
            counts.setdefault(item.topic, Tally()).update(item.reasons)
    lines = [TopicDiscardLine(topic, reasons.total(), dict(reasons)) for topic, reasons in counts.items()]
    return sorted(lines, key=lambda line: (-line.count, line.topic))


def _samples(reports: list[Report]) -> list[SampleLine]:
    lines = []
    for reason, fields in _SAMPLE_FIELDS.items():
        samples = _newest(data for report in reports for read_field in fields for data in read_field(report))
        lines += [SampleLine(reason.name, data=data) for data in samples]
    topics = _newest(topic for report in reports for topic in report.recent_bad_topic)
    return lines + [SampleLine(DiscardReason.BAD_TOPIC.name, topic=topic) for topic in topics]


def _newest(newest_first: Iterable[str]) -> list[str]:
    """Return the newest `MAX_SAMPLES` items without repetitions."""
    return list(dict.fromkeys(newest_first))[:MAX_SAMPLES]
