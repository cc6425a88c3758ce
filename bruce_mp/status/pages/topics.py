"""Topics of the dashboard: traffic and held messages of a bounded number of topics."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.history.topic_traffic import TopicTraffic
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.held import HeldSums, sum_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.status.pages.discards import Report
    from bruce_mp.telemetry.held import HeldGroup

__all__ = ["SORTS", "TopicLine", "TopicSelection", "TopicsPart", "read_topics", "select_topics"]

MAX_SHOWN: Final = 500
"""Limit of the topics in a response, so that a browser draws them quickly."""


class TopicLine(msgspec.Struct, frozen=True):
    """A topic. `partitions` is 0 until the router knows the topic.

    Values of the last minute: messages (`delivered`) and bytes (`size`) acknowledged per second, `errors` in responses,
    and percentiles of the latency from receipt to acknowledgement. `waiting` and `in_flight` messages are held;
    `oldest_ms` is the age of the oldest. `paused` counts the paused partitions, plus one while messages wait
    because no partition has a leader; it is None before the router's first report. `discarded` covers the present
    period of the discard reports and the previous one.
    """

    topic: str
    partitions: int
    delivered: float
    size: float
    p50_ms: float | None
    p99_ms: float | None
    waiting: int
    in_flight: int
    oldest_ms: int | None
    paused: int | None
    errors: int
    last_error: str
    last_error_at: int | None
    discarded: int


class TopicsPart(msgspec.Struct, frozen=True):
    """The topics to show, and two counts: `matching` topics pass the filter, `total` is the count without it."""

    shown: list[TopicLine]
    matching: int
    total: int


class TopicSelection(NamedTuple):
    """Filter and order of the topics that a request selects.

    A topic matches if its name contains `text`, ignoring case. `sort` is one of `SORTS`; at most `limit` topics are
    shown.
    """

    text: str = ""
    sort: str = "delivered"
    ascending: bool = False
    limit: int = 50


SORTS: Final = frozenset(
    "topic partitions delivered size p50_ms p99_ms waiting in_flight oldest_ms paused errors discarded".split()
)
"""Fields to sort by."""


def select_topics(lines: Sequence[TopicLine], selection: TopicSelection) -> TopicsPart:
    """Select and sort topics. Ties are ordered by delivered and waiting messages, then by name."""
    text = selection.text.casefold()
    matching = [line for line in lines if text in line.topic.casefold()]
    matching.sort(key=lambda line: (-line.delivered, -line.waiting, line.topic))
    if selection.sort in SORTS:
        matching.sort(key=lambda line: _sort_key(line, selection.sort), reverse=not selection.ascending)
    return TopicsPart(matching[: max(0, min(selection.limit, MAX_SHOWN))], len(matching), len(lines))


def _sort_key(line: TopicLine, field: str) -> Any:
    value = getattr(line, field)
    return 0 if value is None else value


def read_topics(
    slab: Slab,
    groups: Iterable[HeldGroup],
    traffic: Mapping[bytes, TopicTraffic],
    cluster: ClusterReport,
    reports: Iterable[Report],
    *,
    now_ms: int,
    steady_now_ms: int,
) -> list[TopicLine]:
    """List every topic that the router knows, or that has traffic or held messages."""
    held = sum_held(groups, lambda group: group.topic)
    known = TopicTable(slab).partition_counts()
    paused = None if cluster.router is None else cluster.router.paused_by_topic
    discarded = _count_discarded(reports)
    lines = []
    for name in {**known, **traffic, **held}:
        flow, sums = traffic.get(name, TopicTraffic()), held.get(name, HeldSums())
        line = TopicLine(
            topic_text(name),
            known.get(name, 0),
            flow.delivered_per_s,
            flow.bytes_per_s,
            flow.p50_ms,
            flow.p99_ms,
            waiting=sums.waiting,
            in_flight=sums.in_flight,
            oldest_ms=sums.oldest_ms(steady_now_ms),
            paused=None if paused is None else paused.get(name, 0),
            errors=flow.errors,
            last_error=flow.last_error,
            last_error_at=(flow.last_error_ms + now_ms - steady_now_ms) // 1000 if flow.last_error else None,
            discarded=discarded[topic_text(name)],
        )
        lines.append(line)
    return lines


def _count_discarded(reports: Iterable[Report]) -> Tally[str]:
    counts: Tally[str] = Tally()
    for report in reports:
        for item in report.discard_topic:
            counts[item.topic] += item.count
    return counts
