"""The topics on the dashboard, with their traffic and held messages; a request selects a bounded number of them."""

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
"""Limit of the topics in a response, so that a browser can draw them quickly."""


class TopicLine(msgspec.Struct, frozen=True):
    """A topic. `partitions` is the number of its partitions, or 0 until the router knows the topic.

    `delivered` is the number of messages and `size` the number of bytes acknowledged per second, `errors` the number of
    error responses; these three and the latency percentiles cover the last minute. `in_flight` counts the held messages
    that were sent and await a response, `waiting` all other held messages; `oldest_ms` is the age of the oldest held
    message. `paused` counts the paused partitions, plus one while messages wait because no partition has a leader; it
    is None without a recent report of the router. `last_error_at` is in seconds since the epoch. `discarded` counts the
    messages in the current discard report and in the previous one.
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
    """The topics to show, the number of topics that match the filter, and the number of all topics."""

    shown: list[TopicLine]
    matching: int
    total: int


class TopicSelection(NamedTuple):
    """Filter and order of the topics that a request selects.

    A topic matches if its name contains `text`, in any case. If `sort` is not one of `SORTS`, only the default order
    of `select_topics` applies. At most `limit` topics are shown.
    """

    text: str = ""
    sort: str = "delivered"
    ascending: bool = False
    limit: int = 50


SORTS: Final = frozenset(
    "topic partitions delivered size p50_ms p99_ms waiting in_flight oldest_ms paused errors discarded".split()
)
"""Fields of `TopicLine` to sort by."""


def select_topics(lines: Sequence[TopicLine], selection: TopicSelection) -> TopicsPart:
    """Select and sort topics. The default order is by delivered messages, then by waiting messages, then by name."""
    text = selection.text.casefold()
    matching = [line for line in lines if text in line.topic.casefold()]
    matching.sort(key=lambda line: (-line.delivered, -line.waiting, line.topic))
    if selection.sort in SORTS:  # topics with equal values keep the default order
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
    """List every topic that the router knows, or that has traffic or held messages.

    `groups` are the held messages. `reports` are the discard reports from which to count the discarded messages.
    `now_ms` is the time of the wall clock, `steady_now_ms` that of the steady clock.
    """
    held = sum_held(groups, lambda group: group.topic)
    partition_counts = TopicTable(slab).partition_counts()
    paused = None if cluster.router is None else cluster.router.paused_by_topic
    discarded = _count_discarded(reports)
    lines = []
    for name in {**partition_counts, **traffic, **held}:
        flow, sums = traffic.get(name, TopicTraffic()), held.get(name, HeldSums())
        line = TopicLine(
            topic_text(name),
            partition_counts.get(name, 0),
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
