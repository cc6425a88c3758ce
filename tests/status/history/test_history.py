"""Histories of the status process: the flow of a minute and an hour, by broker and by topic."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.history import topic_traffic
from bruce_mp.status.history.broker_traffic import BrokerHistory, BrokerTraffic
from bruce_mp.status.history.rates import RateHistory
from bruce_mp.status.history.topic_traffic import TopicTraffic, TrafficTable
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.traffic import TrafficEvent
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.filled_slab import FilledSlab


# --- flow -------------------------------------------------------------------------------------------------------------
class Flow:
    """A daemon with the same traffic every second."""

    def __init__(self, filled: FilledSlab) -> None:
        self.filled = filled
        self.history = RateHistory(filled.slab, NOW_MS)
        self.now_ms = NOW_MS
        self.history.sample(NOW_MS)

    def run(self, seconds: int, received: int = 0, delivered: int = 0, bucket: int = 0, lost: int = 0) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            increments = {
                Counter.MsgReceived: received,
                Counter.MsgDelivered: delivered,
                discarded(DiscardReason.BUG): lost,
            }
            self.filled.input.commit_landed(0, {**increments, Counter.AckDelayFirst + bucket: delivered})
            self.history.sample(self.now_ms)


def test_history_has_a_minute_in_seconds(filled: FilledSlab) -> None:
    flow = Flow(filled)
    flow.run(20, received=100, delivered=90, lost=1, bucket=3)
    flow.run(10, received=10, delivered=20, bucket=4)
    minute = flow.history.minute_series(flow.now_ms)
    assert (minute.step_s, minute.span_s) == (1, 60)
    assert minute.age_s == [float(age) for age in range(29, -1, -1)]
    assert minute.received == [100.0] * 20 + [10.0] * 10
    assert minute.delivered == [90.0] * 20 + [20.0] * 10
    assert minute.discarded == [1.0] * 20 + [0.0] * 10
    assert minute.held[:2] == [9, 18]
    assert minute.held[-1] == 20 * 9 - 10 * 10
    assert minute.p50_ms[0] == pytest.approx(17.5)
    assert minute.p99_ms[-1] == pytest.approx(49.75)


def test_memory_is_bounded(filled: FilledSlab) -> None:
    flow = Flow(filled)
    flow.run(4000, received=1)
    assert len(flow.history.minute_series(flow.now_ms).age_s) == 60
    assert flow.history.last_hour(flow.now_ms).duration_ms == 3_600_000


@pytest.mark.parametrize("step_ms", [993, 1003])
def test_slightly_irregular_samples_leave_no_gap(filled: FilledSlab, step_ms: int) -> None:
    flow = Flow(filled)
    for _ in range(100):
        flow.now_ms += step_ms
        flow.history.sample(flow.now_ms)
    assert len(flow.history.minute_series(flow.now_ms).age_s) >= 59


def test_missing_samples_make_one_long_step(filled: FilledSlab) -> None:
    flow = Flow(filled)
    flow.now_ms += 29_000
    flow.run(1, received=300)
    assert flow.history.minute_series(flow.now_ms).received == [10.0]


def test_an_empty_delivery_has_no_delay(filled: FilledSlab) -> None:
    flow = Flow(filled)
    flow.run(2, received=1)
    assert flow.history.minute_series(flow.now_ms).p99_ms == [None, None]
    assert flow.history.last_hour(flow.now_ms).latency.p50_ms is None


def test_last_minute_sums_the_latest_samples(filled: FilledSlab) -> None:
    flow = Flow(filled)
    flow.run(100, received=7, delivered=7)
    flow.run(60, received=20, delivered=10, lost=2)
    now = flow.history.last_minute(flow.now_ms)
    assert 50_000 <= now.duration_ms <= 60_000
    assert (now.received_per_s, now.delivered_per_s, now.discarded_per_s) == (20.0, 10.0, 2.0)
    assert now.latency.messages == now.duration_ms // 100


def test_last_minute_is_the_same_for_topics_brokers_and_the_whole(filled: FilledSlab) -> None:
    flow, table, brokers = Flow(filled), TrafficTable(NOW_MS), BrokerHistory(filled.slab)
    row = give_slot(filled, 7)
    brokers.sample(NOW_MS)
    for second in range(200):
        messages = second * second  # a growing rate differs in every other window
        table.record([event(b"news", messages)], flow.now_ms)
        row.commit_landed(0, {Counter.MsgDelivered: messages})
        flow.run(1)
        brokers.sample(flow.now_ms)
        whole = flow.history.last_minute(flow.now_ms).delivered_per_s
        assert brokers.traffic(2, flow.now_ms).delivered_per_s == whole
        assert table.by_topic(flow.now_ms)[b"news"].delivered_per_s == whole


def test_an_empty_history_returns_zeros(filled: FilledSlab) -> None:
    history = RateHistory(filled.slab, NOW_MS)
    assert history.last_minute(NOW_MS).received_per_s == 0
    assert history.last_hour(NOW_MS).duration_ms == 0
    assert history.minute_series(NOW_MS).age_s == []
    assert history.start_s == NOW_MS // 1000


# --- by broker --------------------------------------------------------------------------------------------------------
def give_slot(filled: FilledSlab, node: int, slot: int = 2) -> ProcessRow:
    row = lay.ROW_FIRST_DISPATCHER + slot
    filled.slab.words[(filled.slab.row_at(row) + lay.ROW_NODE) >> 2] = node + 1
    return ProcessRow(filled.slab, row)


def test_broker_traffic_covers_a_minute_and_an_hour(filled: FilledSlab) -> None:
    row, history = give_slot(filled, 7), BrokerHistory(filled.slab)
    now_ms = NOW_MS
    history.sample(now_ms)
    for _ in range(300):
        now_ms += 1000
        row.commit_landed(0, {Counter.MsgDelivered: 5, Counter.AckDelayFirst + 1: 5})
        history.sample(now_ms)
    row.add(Counter.AckErrorFirst + 1 + 6, 3)
    row.add(Counter.AckErrorFirst + 1, 50)  # no error
    said = history.traffic(2, now_ms)
    assert (said.delivered_per_s, said.errors_minute, said.errors_hour) == (5.0, 3, 3)
    assert said.trend == (5.0,) * 5
    assert said.p50_ms == pytest.approx(3.0)
    now_ms += 1000
    for _ in range(80):
        now_ms += 1000
        history.sample(now_ms)
    said = history.traffic(2, now_ms)
    assert (said.delivered_per_s, said.p99_ms, said.errors_minute, said.errors_hour) == (0.0, None, 0, 3)


def test_broker_history_restarts_when_the_slot_changes_its_broker(filled: FilledSlab) -> None:
    row, history = give_slot(filled, 7), BrokerHistory(filled.slab)
    history.sample(NOW_MS)
    row.commit_landed(0, {Counter.MsgDelivered: 500})
    give_slot(filled, 8)
    history.sample(NOW_MS + 20_000)
    assert history.traffic(2, NOW_MS + 30_000).delivered_per_s == 0
    assert history.traffic(3, NOW_MS) == BrokerTraffic()


# --- by topic ---------------------------------------------------------------------------------------------------------
def event(topic: bytes, messages: int, bucket: int = 0, errors: int = 0) -> TrafficEvent:
    error = "REQUEST_TIMED_OUT" if errors else ""
    return TrafficEvent(topic, messages, 10 * messages, {bucket: messages}, errors, error)


def test_topic_traffic_covers_a_minute() -> None:
    table = TrafficTable(NOW_MS)
    for second in range(1, 31):
        table.record([event(b"news", 100), event(b"news", 20, bucket=2, errors=1)], NOW_MS + 1000 * second)
    said = table.by_topic(NOW_MS + 30_000)[b"news"]
    assert (said.delivered_per_s, said.bytes_per_s, said.errors) == (120.0, 1200.0, 30)
    assert (said.last_error, said.last_error_ms) == ("REQUEST_TIMED_OUT", NOW_MS + 30_000)
    assert said.p50_ms == pytest.approx(0.6)
    assert said.p99_ms == pytest.approx(9.7)
    later = table.by_topic(NOW_MS + 120_000)[b"news"]
    assert later == TopicTraffic(last_error="REQUEST_TIMED_OUT", last_error_ms=NOW_MS + 30_000)


def test_unread_traffic_is_discarded_with_age() -> None:
    table = TrafficTable(NOW_MS)
    tracemalloc.start()
    try:
        for slot in range(5000):
            table.record([event(b"news", 1)], NOW_MS + 10_000 * slot)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100_000


def test_rates_of_a_steady_flow_are_steady() -> None:
    table = TrafficTable(NOW_MS)
    rates = set()
    for second in range(1, 200):
        table.record([event(b"news", 7)], NOW_MS + 1000 * second - 1)
        rates.add(round(table.by_topic(NOW_MS + 1000 * second)[b"news"].delivered_per_s, 1))
    assert rates == {7.0}


def test_excess_topics_are_unnamed_until_others_become_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_traffic, "MAX_TOPICS", 2)
    table = TrafficTable(NOW_MS)
    table.record([event(b"a", 1), event(b"b", 1), event(b"c", 1)], NOW_MS + 1)
    assert set(table.by_topic(NOW_MS + 1)) == {b"a", b"b", b""}
    table.record([event(b"d", 1)], NOW_MS + 100_000)
    assert set(table.by_topic(NOW_MS + 100_000)) == {b"d"}
