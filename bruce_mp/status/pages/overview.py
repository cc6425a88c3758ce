"""The page `/overview`: all data of the dashboard in one response of bounded size.

All clients share a snapshot, which `app.py` caches; `with_topics` adds the topics that a request selects.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.status.pages.brokers import BrokerLine, PausedScopeLine, dispatcher_slots, read_brokers
from bruce_mp.status.pages.compression import CompressionSummary, summarize_compression
from bruce_mp.status.pages.discards import DiscardSummary, Report, summarize_discards
from bruce_mp.status.pages.front_page import entry_of
from bruce_mp.status.pages.header import Page
from bruce_mp.status.pages.health import assess_health
from bruce_mp.status.pages.topics import TopicLine, TopicsPart, read_topics, select_topics
from bruce_mp.telemetry.held import read_held_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.history.broker_traffic import BrokerHistory
    from bruce_mp.status.history.history_recorder import HistoryRecorder
    from bruce_mp.status.history.losses import LossHistory
    from bruce_mp.status.history.rates import Latency, RateHistory, Series
    from bruce_mp.status.history.topic_totals import TopicTotals
    from bruce_mp.status.history.topic_traffic import TrafficTable
    from bruce_mp.status.pages.brokers import BrokersPage
    from bruce_mp.status.pages.compression import CompressionPage
    from bruce_mp.status.pages.health import Evidence
    from bruce_mp.status.pages.processes import ProcessLine
    from bruce_mp.status.pages.slab_use import SlabUse
    from bruce_mp.status.pages.topics import TopicSelection
    from bruce_mp.telemetry.books import Books

__all__ = ["Histories", "OverviewPage", "OverviewSnapshot", "read_overview", "with_topics"]


class Histories(msgspec.Struct, frozen=True):
    """Histories that the status process keeps; `traffic` and `totals` are by topic."""

    rates: RateHistory
    losses: LossHistory
    brokers: BrokerHistory
    traffic: TrafficTable
    totals: TopicTotals
    recorder: HistoryRecorder


class HealthPart(msgspec.Struct, frozen=True):
    """Health as on `/healthz`. `entries` maps each problem and warning to the address of its entry in `/operating`."""

    live: bool
    ready: bool
    problems: list[str]
    warnings: list[str]
    entries: dict[str, str]


class FlowPart(msgspec.Struct, frozen=True):
    """Messages per second, and acknowledged bytes per second (`size`), in the last `seconds`, at most a minute."""

    seconds: float
    received: float
    delivered: float
    discarded: float
    size: float


class BooksPart(msgspec.Struct, frozen=True):
    """The books, as on `/books`; `balanced` is None if the reading was not consistent."""

    received: int
    delivered: int
    discarded: int
    held: dict[str, int]
    possible_duplicates: int
    balanced: bool | None


class BrokerPart(BrokerLine, frozen=True, kw_only=True):
    """Broker as on `/brokers`, with its traffic.

    `delivered` is the number of messages per second in the last minute, and the latencies are those of the last minute.
    `errors_minute` and `errors_hour` count error responses. `trend` has the messages delivered per second in each
    minute of the last hour, the oldest minute first.
    """

    delivered: float
    p50_ms: float | None
    p99_ms: float | None
    errors_minute: int
    errors_hour: int
    trend: list[float]


class OverviewPage(Page, frozen=True, kw_only=True):
    """JSON of `/overview`.

    `host` is this machine's name. `sampled_since` is the start of the status process in seconds since the epoch; only
    the hour of `history` covers an earlier time. `oldest_ms` is the age of the oldest held message in the slab, or None
    if there is none. `latency` and `history` have the keys `minute` and `hour`.
    """

    host: str
    sampled_since: int
    health: HealthPart
    flow: FlowPart
    books: BooksPart
    oldest_ms: int | None
    slab: SlabUse
    latency: dict[str, Latency]
    history: dict[str, Series]
    metadata_failing_since: int | None
    metadata_error: str
    brokers: list[BrokerPart]
    paused: list[PausedScopeLine]
    paused_count: int | None
    topics: TopicsPart
    discards: DiscardSummary
    compression: CompressionSummary
    processes: list[ProcessLine]


class OverviewSnapshot(msgspec.Struct, frozen=True):
    """The page with an empty `topics`, and all topics, from which a request selects some."""

    page: OverviewPage
    topics: list[TopicLine]


def read_overview(
    slab: Slab,
    histories: Histories,
    evidence: Evidence,
    reports: list[Report],
    compression: CompressionPage,
    *,
    now_ms: int,
    steady_now_ms: int,
) -> OverviewSnapshot:
    groups = read_held_groups(slab)
    cluster = evidence.cluster
    brokers = read_brokers(slab, cluster, groups, now_ms, steady_now_ms)
    traffic = histories.traffic.by_topic(steady_now_ms)
    rates = histories.rates
    minute, hour = rates.last_minute(steady_now_ms), rates.last_hour(steady_now_ms)
    health = assess_health(evidence)
    arrivals_ms = [group.arrived_ms for group in groups]
    page = OverviewPage(
        pid=health.pid,
        version=health.version,
        since=health.since,
        now=health.now,
        host=platform.node(),
        sampled_since=rates.start_s,
        health=HealthPart(
            health.live,
            health.ready,
            health.problems,
            health.warnings,
            {text: entry_of(text) for text in (*health.problems, *health.warnings)},
        ),
        flow=FlowPart(
            round(minute.duration_ms / 1000, 1),
            minute.received_per_s,
            minute.delivered_per_s,
            minute.discarded_per_s,
            round(sum(topic.bytes_per_s for topic in traffic.values()), 1),
        ),
        books=_books(evidence.books),
        oldest_ms=max(0, steady_now_ms - min(arrivals_ms)) if arrivals_ms else None,
        slab=evidence.slab_use,
        latency={"minute": minute.latency, "hour": hour.latency},
        history={"minute": rates.minute_series(steady_now_ms), "hour": histories.recorder.hour_series(now_ms // 1000)},
        metadata_failing_since=brokers.metadata_failing_since,
        metadata_error=brokers.metadata_error,
        brokers=_brokers(slab, brokers, histories.brokers, steady_now_ms),
        paused=brokers.paused,
        paused_count=brokers.paused_count,
        topics=TopicsPart([], 0, 0),  # `with_topics` fills it
        discards=summarize_discards(evidence.books, evidence.minute_discards, evidence.hour_discards, reports),
        compression=summarize_compression(compression),
        processes=evidence.processes.processes,
    )
    return OverviewSnapshot(
        page, read_topics(slab, groups, traffic, cluster, reports, now_ms=now_ms, steady_now_ms=steady_now_ms)
    )


def _books(books: Books) -> BooksPart:
    return BooksPart(
        books.received,
        books.delivered,
        sum(books.discarded.values()),
        books.held,
        books.possible_duplicates,
        books.balanced if books.consistent else None,
    )


def _brokers(slab: Slab, page: BrokersPage, history: BrokerHistory, steady_now_ms: int) -> list[BrokerPart]:
    slots: Mapping[int, int] = dict(dispatcher_slots(slab))
    parts = []
    for line in page.brokers:
        traffic = history.traffic(slots.get(line.node), steady_now_ms)
        part = BrokerPart(
            **msgspec.structs.asdict(line),
            delivered=traffic.delivered_per_s,
            p50_ms=traffic.p50_ms,
            p99_ms=traffic.p99_ms,
            errors_minute=traffic.errors_minute,
            errors_hour=traffic.errors_hour,
            trend=list(traffic.trend),
        )
        parts.append(part)
    return parts


def with_topics(snapshot: OverviewSnapshot, selection: TopicSelection) -> OverviewPage:
    return msgspec.structs.replace(snapshot.page, topics=select_topics(snapshot.topics, selection))
