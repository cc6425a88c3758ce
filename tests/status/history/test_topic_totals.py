"""Totals by topic: which topics have series, and the received messages derived from the held ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.status.history.topic_totals import TopicTotals
from bruce_mp.telemetry.traffic import TrafficEvent
from support.filled_slab import FilledSlab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.slab.file import Slab

HOUR_MS: Final = 3_600_000
TOPICS: Final = tuple(b"t%d" % number for number in range(6))


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[Slab]:
    filled = FilledSlab(tmp_path / "slab", known=TOPICS)
    yield filled.slab
    filled.close()


def delivered(topic: bytes, messages: int) -> TrafficEvent:
    return TrafficEvent(topic, messages, 10 * messages, {}, 0, "")


def discarded(topic: bytes, messages: int) -> DiscardEvent:
    return DiscardEvent(DiscardReason.RATE_LIMIT, topic, messages, 0, 0)


def observe(totals: TopicTotals, held: dict[bytes, int], now_ms: int = 0) -> None:
    totals.observe_held(totals.settled_by_topic(), held.items(), now_ms)


def received(totals: TopicTotals, topic: bytes) -> int:
    topics, other = totals.read()
    return topics[topic].received if topic else other.received


def test_received_is_delivered_discarded_and_held(slab: Slab) -> None:
    totals = TopicTotals(slab, 10)
    totals.record([delivered(b"t0", 5), discarded(b"t0", 2)], 0)
    observe(totals, {b"t0": 4, b"t1": 1})
    topics, _ = totals.read()
    assert {name: (each.received, each.delivered, each.discarded) for name, each in topics.items()} == {
        b"t0": (11, 5, 2),
        b"t1": (1, 0, 0),
    }


def test_received_does_not_count_a_message_that_is_settled_during_the_count(slab: Slab) -> None:
    totals = TopicTotals(slab, 10)
    observe(totals, {b"t0": 5})
    before = totals.settled_by_topic()
    totals.record([delivered(b"t0", 5)], 0)
    totals.observe_held(before, [(b"t0", 5)], 0)  # the count began before the acknowledgement
    assert received(totals, b"t0") == 5


def test_received_does_not_fall_while_a_report_is_under_way(slab: Slab) -> None:
    totals = TopicTotals(slab, 10)
    observe(totals, {b"t0": 5})
    observe(totals, {})  # delivered, but the dispatcher has not reported it
    assert received(totals, b"t0") == 5
    totals.record([delivered(b"t0", 5)], 0)
    observe(totals, {b"t0": 1})
    assert received(totals, b"t0") == 6


def test_settled_messages_count_as_received_before_the_next_count(slab: Slab) -> None:
    totals = TopicTotals(slab, 10)
    totals.record([delivered(b"t0", 5), discarded(b"", 3)], 0)
    assert (received(totals, b"t0"), received(totals, b"")) == (5, 3)


def test_topics_beyond_the_limit_and_unknown_names_are_summed(slab: Slab) -> None:
    totals = TopicTotals(slab, 2)
    totals.record([discarded(b"invented", 1), *(delivered(topic, 3) for topic in TOPICS)], 0)
    observe(totals, {b"t5": 2, b"(gone)": 4})
    topics, other = totals.read()
    assert set(topics) == {b"t0", b"t1"}
    assert (other.received, other.delivered, other.discarded, other.delivered_bytes) == (19, 12, 1, 120)


def test_an_idle_topic_gives_its_series_to_another_one_after_an_hour(slab: Slab) -> None:
    totals = TopicTotals(slab, 2)
    totals.record([delivered(b"t0", 1), delivered(b"t1", 1)], 0)
    observe(totals, {b"t1": 1}, HOUR_MS)  # a topic with held messages is not idle
    totals.record([delivered(b"t2", 1)], HOUR_MS)
    assert set(totals.read()[0]) == {b"t0", b"t1"}
    totals.record([delivered(b"t2", 7)], HOUR_MS + 1)
    topics, other = totals.read()
    assert {name: each.delivered for name, each in topics.items()} == {b"t1": 1, b"t2": 7}
    assert other.delivered == 1, "the sum of the others never falls"


def test_a_smaller_limit_removes_the_topics_that_are_idle_for_longest(slab: Slab) -> None:
    totals = TopicTotals(slab, 3)
    for now_ms, topic in enumerate(TOPICS[:3]):
        totals.record([delivered(topic, 1)], now_ms)
    totals.apply_limit(1)
    totals.record([delivered(b"t0", 4)], 5)
    topics, other = totals.read()
    assert (set(topics), other.delivered) == ({b"t2"}, 4)
    totals.apply_limit(0)
    assert totals.read()[0] == {}


def test_errors_alone_take_no_series(slab: Slab) -> None:
    totals = TopicTotals(slab, 3)
    totals.record([TrafficEvent(b"t0", 0, 0, {}, 2, "REQUEST_TIMED_OUT")], 0)
    assert totals.read()[0] == {}
