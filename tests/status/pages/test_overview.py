"""The page `/overview`, the data source of the dashboard."""

from __future__ import annotations

import platform
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.app import MIN_SNAPSHOT_INTERVAL_S
from bruce_mp.telemetry.broker_status import CONNECTED, BrokerStatus, PausedScope, RouterStatus
from bruce_mp.telemetry.compression import CompressionEvent
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.traffic import TrafficEvent
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

S = NOW_MS // 1000
NASTY = b'<script>alert("1")</script>\xff'


def ask(daemon: OfflineStatusPages, **query: object) -> Any:
    """Return a fresh page; the cached reading has expired."""
    daemon.steady_ms += round(1000 * MIN_SNAPSHOT_INTERVAL_S)
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return daemon.json(f"/overview/json?{text}")


def lines(page: Any) -> dict[str, Any]:
    return {line["topic"]: line for line in page["topics"]["shown"]}


def test_the_overview_of_a_new_daemon_is_empty(daemon: OfflineStatusPages) -> None:
    page = ask(daemon)
    assert (page["host"], page["sampled_since"], page["oldest_ms"]) == (platform.node(), S, None)
    assert page["flow"] == {"seconds": 0.0, "received": 0.0, "delivered": 0.0, "discarded": 0.0, "size": 0}
    assert page["books"]["balanced"] is True
    assert page["slab"] == {"size": 32 * 8192, "chunk": 8192, "in_use": 0, "settled": 0, "classes": []}
    assert page["brokers"] == page["paused"] == page["compression"]["topics"] == page["discards"]["reasons"] == []
    assert page["health"]["problems"] == daemon.json("/healthz", 503)["problems"]
    assert list(lines(page)) == ["clicks", "news"]


def test_the_overview_shows_flow_and_history(daemon: OfflineStatusPages) -> None:
    history = daemon.histories.rates
    history.sample(daemon.steady_ms)
    for _ in range(20):
        daemon.steady_ms += 1000
        daemon.filled.input.commit_landed(
            0, {Counter.MsgReceived: 10, Counter.MsgDelivered: 8, Counter.AckDelayFirst: 8}
        )
        history.sample(daemon.steady_ms)
    page = ask(daemon)
    assert page["flow"]["seconds"] == 20.8
    assert page["flow"]["received"] == pytest.approx(10, rel=0.05)
    assert page["latency"]["hour"] == {"messages": 160, "p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
    assert page["history"]["minute"]["received"] == [10.0] * 20
    assert page["history"]["hour"]["held"] == [40]


def test_the_overview_shows_held_messages_by_topic_and_slab_use(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 2, RunState.ROUTED)
    daemon.filled.receive(b"news", 5, RunState.IN_FLIGHT)
    daemon.filled.receive(NASTY, 3, RunState.FILLED)
    daemon.filled.receive(b"clicks", 4, RunState.DELIVERED)
    daemon.steady_ms += 9200
    page = ask(daemon)
    assert page["oldest_ms"] == 10_000
    assert (lines(page)["news"]["waiting"], lines(page)["news"]["in_flight"]) == (2, 5)
    assert lines(page)[r'<script>alert("1")</script>\xff'] | {"oldest_ms": 0} == {
        "topic": r'<script>alert("1")</script>\xff',
        "partitions": 0,
        "delivered": 0.0,
        "size": 0.0,
        "p50_ms": None,
        "p99_ms": None,
        "waiting": 3,
        "in_flight": 0,
        "oldest_ms": 0,
        "paused": None,
        "errors": 0,
        "last_error": "",
        "last_error_at": None,
        "discarded": 0,
    }
    (shared,) = page["slab"]["classes"]
    assert shared["bytes"] == 8192
    assert (shared["in_use"], shared["settled"]) == (page["slab"]["in_use"], page["slab"]["settled"])
    assert shared["in_use"] + shared["settled"] == 8192 * shared["places"]


def test_large_messages_have_a_separate_size_class(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 1, RunState.ROUTED, value=bytes(20_000))
    daemon.filled.receive(b"news", 1, RunState.ROUTED, value=bytes(30_000))
    daemon.filled.receive(b"news", 1, RunState.DELIVERED, value=bytes(60_000))
    page = ask(daemon)
    assert [(each["bytes"], each["places"]) for each in page["slab"]["classes"]] == [(32768, 2), (65536, 1)]
    assert [each["settled"] for each in page["slab"]["classes"]] == [0, 8 * 8192]


def test_the_overview_shows_the_traffic_of_topics(daemon: OfflineStatusPages) -> None:
    daemon.steady_ms += 10_000
    event = TrafficEvent(b"news", 50, 7000, {3: 50}, 2, "REQUEST_TIMED_OUT")
    daemon.histories.traffic.record([event], daemon.steady_ms)
    daemon.reports.record([DiscardEvent(DiscardReason.RATE_LIMIT, b"news", 6, 0, 0)], daemon.now_ms)
    paused = (PausedScope(3, b"news", 1, "waiting", NOW_MS), PausedScope(3, b"news", 2, "waiting", NOW_MS))
    standing = RouterStatus((), None, "", paused, paused_count=240, paused_by_topic={b"news": 120, b"other": 120})
    daemon.broker_status.record([standing], daemon.steady_ms)
    page = ask(daemon)
    line = lines(page)["news"]
    assert line["delivered"] == pytest.approx(5, rel=0.1)
    assert page["flow"]["size"] == pytest.approx(700, rel=0.1)
    assert (line["errors"], line["last_error"], line["last_error_at"]) == (2, "REQUEST_TIMED_OUT", S - 1)
    assert (line["paused"], line["discarded"], line["partitions"]) == (120, 6, 3)
    assert (line["p50_ms"], page["paused_count"]) == (17.5, 240)


def test_the_overview_shows_a_broker_with_its_history(daemon: OfflineStatusPages) -> None:
    at = daemon.slab.row_at(lay.ROW_FIRST_DISPATCHER + 3) + lay.ROW_NODE
    daemon.slab.words[at >> 2] = 2
    said = BrokerStatus(3, 1, "kafka1", 9092, CONNECTED, NOW_MS, 2, "", 0, True)
    daemon.broker_status.record([said], daemon.steady_ms + 9200)
    daemon.histories.brokers.sample(daemon.steady_ms)
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER + 3).commit_landed(
        0, {Counter.MsgDelivered: 100, Counter.AckErrorFirst + 8: 4}
    )
    daemon.steady_ms += 9200
    (broker,) = ask(daemon)["brokers"]
    assert (broker["address"], broker["connection"], broker["delivery"]) == ("kafka1:9092", "connected", "exactly once")
    assert (broker["delivered"], broker["errors_minute"], broker["errors_hour"]) == (10.0, 4, 4)


def test_the_overview_shows_discards_with_samples(daemon: OfflineStatusPages) -> None:
    daemon.histories.losses.sample()
    increments = {discarded(DiscardReason.MALFORMED): 8, discarded(DiscardReason.NO_MEM): 2, Counter.MsgReceived: 10}
    daemon.filled.input.commit_landed(0, increments)
    samples = tuple(b"bad %d" % number for number in range(9))
    events = [
        DiscardEvent(DiscardReason.MALFORMED, b"", 8, 0, 0, samples),
        DiscardEvent(DiscardReason.NO_MEM, b"news", 2, 0, 0),
        DiscardEvent(DiscardReason.BAD_TOPIC, NASTY, 1, 0, 0),
    ]
    daemon.reports.record(events, daemon.now_ms)
    daemon.now_ms += 600_000
    daemon.reports.record(events[1:2], daemon.now_ms)
    page = ask(daemon)["discards"]
    assert page["since"] == S - 100
    assert [(each["reason"], each["total"], each["minute"], each["is_fault"]) for each in page["reasons"]] == [
        ("MALFORMED", 8, 8, False),
        ("NO_MEM", 2, 2, True),
    ]
    assert page["topics"] == [{"topic": "news", "count": 4, "reasons": {"NO_MEM": 4}}]
    assert [each["reason"] for each in page["samples"]] == ["MALFORMED"] * 5 + ["BAD_TOPIC"]
    assert page["samples"][0]["data"] == "YmFkIDg="
    assert page["samples"][-1]["topic"] == r'<script>alert("1")</script>\xff'


def test_the_overview_summarizes_compression(daemon: OfflineStatusPages) -> None:
    event = CompressionEvent(b"", "lz4", tried=1, kept=1, plain_bytes=1000, packed_bytes=250)
    names = [b"topic-%d" % number for number in range(30)]
    daemon.compression.record(CompressionEvent(name, "lz4", 1, 1, 0, 1000, 250, 9) for name in names)
    daemon.compression.record([event])
    page = ask(daemon)["compression"]
    assert (page["topic_count"], len(page["topics"])) == (31, 20)
    (codec,) = page["codecs"]
    assert (codec["codec"], codec["tried"], codec["plain_bytes"], codec["percent"]) == ("lz4", 31, 31_000, 25.0)


def test_a_topic_with_two_codecs_is_one_of_the_listed_topics(daemon: OfflineStatusPages) -> None:
    """The page compares the number of listed topics with `topic_count`."""
    codecs = {"lz4": 1000, "zstd": 10}
    daemon.compression.record(
        CompressionEvent(b"topic-%d" % number, codec, plain_bytes=size)
        for number in range(25)
        for codec, size in codecs.items()
    )
    page = ask(daemon)["compression"]
    listed = Tally(line["topic"] for line in page["topics"])
    assert (page["topic_count"], len(listed), set(listed.values())) == (25, 20, {2})


# --- which topics -----------------------------------------------------------------------------------------------------
@pytest.fixture
def many(daemon: OfflineStatusPages) -> OfflineStatusPages:
    events = [TrafficEvent(b"app-%d" % number, number, 1, {}, 0, "") for number in range(1, 2001)]
    daemon.histories.traffic.record(events, daemon.steady_ms)
    daemon.steady_ms += 10_000
    return daemon


def test_the_busiest_of_thousands_of_topics_are_shown(many: OfflineStatusPages) -> None:
    page = ask(many)
    assert list(lines(page)) == [f"app-{number}" for number in range(2000, 1950, -1)]
    assert (page["topics"]["matching"], page["topics"]["total"]) == (2002, 2002)


@pytest.mark.parametrize(
    ("query", "first", "shown", "matching"),
    [
        ({"topic": "APP-19", "limit": 3}, ["app-1999", "app-1998", "app-1997"], 3, 111),
        ({"topic": "app", "sort": "delivered", "order": "ascending", "limit": 2}, ["app-1", "app-2"], 2, 2000),
        ({"sort": "topic", "order": "ascending", "limit": 2}, ["app-1", "app-10"], 2, 2002),
        ({"sort": "no such column", "limit": 1}, ["app-2000"], 1, 2002),
        ({"limit": 100_000}, ["app-2000"], 500, 2002),
        ({"limit": -1}, [], 0, 2002),
        ({"limit": "many"}, ["app-2000"], 50, 2002),
        ({"topic": "%3Cnothing%3E"}, [], 0, 0),
    ],
)
def test_the_query_selects_topics(
    many: OfflineStatusPages, query: dict[str, object], first: list[str], shown: int, matching: int
) -> None:
    page = ask(many, **query)
    assert list(lines(page))[: len(first)] == first
    assert (len(page["topics"]["shown"]), page["topics"]["matching"]) == (shown, matching)


def test_concurrent_viewers_share_one_reading(daemon: OfflineStatusPages) -> None:
    assert ask(daemon)["books"]["received"] == 0
    daemon.filled.receive(b"news", 1, RunState.ROUTED)
    assert daemon.json("/overview/json")["books"]["received"] == 0
    assert ask(daemon)["books"]["received"] == 1
