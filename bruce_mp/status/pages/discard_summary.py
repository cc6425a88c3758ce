"""Summary of discards for the dashboard: counts by reason and by topic, and samples."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.discards.reasons import CAUSED_BY_FAULT, EXPLANATIONS
from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.status.pages.discards import RejectedSenderLine, Report
    from bruce_mp.telemetry.books import Books

__all__ = ["DiscardSummary", "read_discard_summary"]

MAX_TOPICS: Final = 20
"""Topics that fit on the page."""
MAX_SAMPLES: Final = 5
"""Limit for each kind of sample."""


class ReasonLine(msgspec.Struct, frozen=True):
    """Messages discarded for a reason: since the slab was created, in the last minute and in the last hour.

    `meaning` completes a sentence with the messages as subject. `is_fault` is True if the daemon or the cluster is at
    fault, which `/healthz` reports as a problem.
    """

    reason: str
    total: int
    minute: int
    hour: int
    is_fault: bool
    meaning: str


class TopicDiscardLine(msgspec.Struct, frozen=True):
    """Discarded messages of a topic. The line with an empty topic sums the topics that a full table did not admit."""

    topic: str
    count: int
    reasons: dict[str, int]


class SampleLine(msgspec.Struct, frozen=True):
    """Sample of a discarded message: its first bytes in base64, or the name of an unknown topic."""

    reason: str
    data: str | None = None
    topic: str | None = None


class DiscardSummary(msgspec.Struct, frozen=True):
    """Discards by reason since the slab was created, and details of the report periods since `since` (s).

    `topics` holds the topics with the most discards, of `topic_count` in all. `samples` holds the newest of each kind.
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
"""Report fields that hold the samples of a reason."""


def read_discard_summary(
    books: Books, minute: Mapping[DiscardReason, int], hour: Mapping[DiscardReason, int], reports: list[Report]
) -> DiscardSummary:
    """Summarize the discards for the dashboard. `reports` begins with the unfinished report."""
    topics = _topics(reports)
    return DiscardSummary(
        since=reports[-1].start_time,
        reasons=[
            ReasonLine(
                name, total, minute.get(reason, 0), hour.get(reason, 0), reason in CAUSED_BY_FAULT, EXPLANATIONS[reason]
            )
            for name, total in sorted(books.discarded.items(), key=lambda item: -item[1])
            for reason in (DiscardReason[name],)
        ],
        topics=topics[:MAX_TOPICS],
        topic_count=len(topics),
        samples=_samples(reports),
        culprits=[sender for report in reports for sender in report.culprits][:MAX_SAMPLES],
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
    for reason, lists in _SAMPLE_FIELDS.items():
        newest = _newest(data for report in reports for read in lists for data in read(report))
        lines += [SampleLine(reason.name, data=data) for data in newest]
    names = _newest(topic for report in reports for topic in report.recent_bad_topic)
    return lines + [SampleLine(DiscardReason.BAD_TOPIC.name, topic=topic) for topic in names]


def _newest(items: Iterable[str]) -> list[str]:
    """Return the first distinct items, which are the newest."""
    return list(dict.fromkeys(items))[:MAX_SAMPLES]
