"""Topics of the dashboard: traffic and held messages of a bounded number of topics."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bruce_mp.slab.layout import RunState
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.history.topic_traffic import TopicTraffic
from bruce_mp.status.pages.text import topic_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.status.pages.discards import Report
    from bruce_mp.status.slab_snapshot import HeldGroup

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

    A topic matches if its name contains `text`, ignoring case. `sort` is a key of `SORTS`; at most `limit` topics are
    shown.
    """

    text: str = ""
    sort: str = "delivered"
    ascending: bool = False
    limit: int = 50


SORTS: Final[Mapping[str, Callable[[TopicLine], Any]]] = {
    "topic": lambda line: line.topic,
    "partitions": lambda line: line.partitions,
    "delivered": lambda line: line.delivered,
    "size": lambda line: line.size,
    "p50_ms": lambda line: line.p50_ms or 0,
    "p99_ms": lambda line: line.p99_ms or 0,
    "waiting": lambda line: line.waiting,
    "in_flight": lambda line: line.in_flight,
    "oldest_ms": lambda line: line.oldest_ms or 0,
    "paused": lambda line: line.paused or 0,
    "errors": lambda line: line.errors,
    "discarded": lambda line: line.discarded,
}


def select_topics(lines: Iterable[TopicLine], selection: TopicSelection) -> TopicsPart:
    """Select and sort topics. Ties are ordered by delivered and waiting messages, then by name."""
    lines = list(lines)
    text = selection.text.casefold()
    matching = [line for line in lines if text in line.topic.casefold()]
    matching.sort(key=lambda line: (-line.delivered, -line.waiting, line.topic))
    if selection.sort in SORTS:
        matching.sort(key=SORTS[selection.sort], reverse=not selection.ascending)
    return TopicsPart(matching[: max(0, min(selection.limit, MAX_SHOWN))], len(matching), len(lines))


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
    held = _count_held(groups)
    known = TopicTable(slab).partition_counts()
    paused = None if cluster.router is None else cluster.router.paused_by_topic
    discarded = _count_discarded(reports)
    return [
        _topic_line(
            topic_text(name),
            known.get(name, 0),
            traffic.get(name, TopicTraffic()),
            held.get(name, _TopicCounts()),
            paused=None if paused is None else paused.get(name, 0),
            discarded=discarded[topic_text(name)],
            now_ms=now_ms,
            steady_now_ms=steady_now_ms,
        )
        for name in {**known, **traffic, **held}
    ]


class _TopicCounts:
    __slots__ = ("in_flight", "oldest_arrival_ms", "waiting")

    def __init__(self) -> None:
        self.waiting = self.in_flight = 0
        self.oldest_arrival_ms: int | None = None


def _count_held(groups: Iterable[HeldGroup]) -> dict[bytes, _TopicCounts]:
    counts: dict[bytes, _TopicCounts] = {}
    for group in groups:
        held = counts.setdefault(group.topic, _TopicCounts())
        if group.state is RunState.IN_FLIGHT:
            held.in_flight += group.messages
        else:
            held.waiting += group.messages
        earlier = held.oldest_arrival_ms
        held.oldest_arrival_ms = group.arrived_ms if earlier is None else min(earlier, group.arrived_ms)
    return counts


def _count_discarded(reports: Iterable[Report]) -> Tally[str]:
    counts: Tally[str] = Tally()
    for report in reports:
        for item in report.discard_topic:
            counts[item.topic] += item.count
    return counts


def _topic_line(
    topic: str,
    partitions: int,
    traffic: TopicTraffic,
    held: _TopicCounts,
    *,
    paused: int | None,
    discarded: int,
    now_ms: int,
    steady_now_ms: int,
) -> TopicLine:
    return TopicLine(
        topic,
        partitions,
        traffic.delivered,
        traffic.size,
        traffic.p50_ms,
        traffic.p99_ms,
        waiting=held.waiting,
        in_flight=held.in_flight,
        oldest_ms=None if held.oldest_arrival_ms is None else max(0, steady_now_ms - held.oldest_arrival_ms),
        paused=paused,
        errors=traffic.errors,
        last_error=traffic.last_error,
        last_error_at=(traffic.last_error_ms + now_ms - steady_now_ms) // 1000 if traffic.last_error else None,
        discarded=discarded,
    )
