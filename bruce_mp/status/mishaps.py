"""The discards as the page for people shows them: how many and why, of which topics, and what they looked like."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.telemetry.reasons import BY_FAULT, EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.status.discards import Culprit, Report
    from bruce_mp.telemetry.books import Books

__all__ = ["Mishaps", "read_mishaps"]

MOST_TOPICS: Final = 20
MOST_SAMPLES: Final = 5
"""Of each kind."""


class ReasonLine(msgspec.Struct, frozen=True):
    """Messages discarded for a reason: ever, as long as the slab lives, and lately.  `meaning` goes on a sentence.

    `is_fault`: it lies with the daemon or the cluster, and is a problem on `/healthz`.
    """

    reason: str
    total: int
    minute: int
    hour: int
    is_fault: bool
    meaning: str


class TopicDiscards(msgspec.Struct, frozen=True):
    """Discarded messages of a topic; the topic is empty where there were too many."""

    topic: str
    count: int
    reasons: dict[str, int]


class SampleLine(msgspec.Struct, frozen=True):
    """What a discarded message looked like: its first bytes in base64, or the name of a topic that there is not."""

    reason: str
    data: str | None = None
    topic: str | None = None


class Mishaps(msgspec.Struct, frozen=True):
    """Reasons that ever occurred; topics, samples and culprits of the period of reports since `since` (s).

    `topics` are those with the most discards, of `topic_count`; samples are the newest of each kind.
    """

    since: int
    reasons: list[ReasonLine]
    topics: list[TopicDiscards]
    topic_count: int
    samples: list[SampleLine]
    culprits: list[Culprit]


_BYTES: Final[Mapping[DiscardReason, tuple[Callable[[Report], list[str]], ...]]] = {
    DiscardReason.MALFORMED: (lambda report: report.recent_malformed,),
    DiscardReason.UNCLEAN_DISCONNECT: (
        lambda report: report.unix_stream_unclean_disconnect,
        lambda report: report.tcp_unclean_disconnect,
    ),
    DiscardReason.LONG_MSG: (lambda report: report.recent_too_long_msg,),
}
"""Where the samples of a reason are."""


def read_mishaps(
    books: Books, minute: Mapping[DiscardReason, int], hour: Mapping[DiscardReason, int], reports: list[Report]
) -> Mishaps:
    """The part of the page; `reports` is the one in progress and those before, the newest first."""
    topics = _topics(reports)
    return Mishaps(
        since=reports[-1].start_time,
        reasons=[
            ReasonLine(name, total, minute.get(reason, 0), hour.get(reason, 0), reason in BY_FAULT, EXPLAINED[reason])
            for name, total in sorted(books.discarded.items(), key=lambda item: -item[1])
            if (reason := DiscardReason[name])
        ],
        topics=topics[:MOST_TOPICS],
        topic_count=len(topics),
        samples=_samples(reports),
        culprits=[culprit for report in reports for culprit in report.culprits][:MOST_SAMPLES],
    )


def _topics(reports: Iterable[Report]) -> list[TopicDiscards]:
    found: dict[str, Tally[str]] = {}
    for report in reports:
        for item in report.discard_topic:
            found.setdefault(item.topic, Tally()).update(item.reasons)
    lines = [TopicDiscards(topic, reasons.total(), dict(reasons)) for topic, reasons in found.items()]
    return sorted(lines, key=lambda line: (-line.count, line.topic))


def _samples(reports: Iterable[Report]) -> list[SampleLine]:
    reports = list(reports)
    lines = []
    for reason, lists in _BYTES.items():
        found = _newest(data for report in reports for read in lists for data in read(report))
        lines += [SampleLine(reason.name, data=data) for data in found]
    names = _newest(topic for report in reports for topic in report.recent_bad_topic)
    return lines + [SampleLine(DiscardReason.BAD_TOPIC.name, topic=topic) for topic in names]


def _newest(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))[:MOST_SAMPLES]
