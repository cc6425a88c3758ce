"""Traffic sums of a dispatcher by topic, and percentiles of latencies."""

from __future__ import annotations

import pytest

from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry import traffic
from bruce_mp.telemetry.event_output import encode_events
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS, BUCKET_COUNT, percentile
from bruce_mp.telemetry.traffic import TrafficEvent, TrafficSums
from support.fake_deliveries import FakeDeliveries


def test_deliveries_and_errors_of_a_topic_are_one_event() -> None:
    delivered = FakeDeliveries()
    sums = TrafficSums(delivered)
    assert not sums
    delivered.append((b"news", 4, 520, {0: 2, 3: 2}))
    assert sums
    assert sums.events() == [TrafficEvent(b"news", 4, 520, {0: 2, 3: 2})]
    sums.add_error(b"news", "NOT_LEADER_FOR_PARTITION")
    sums.add_error(b"clicks", "REQUEST_TIMED_OUT")
    events = sums.events()
    assert events == [
        TrafficEvent(b"news", 4, 520, {0: 2, 3: 2}, 1, "NOT_LEADER_FOR_PARTITION"),
        TrafficEvent(b"clicks", 0, 0, {}, 1, "REQUEST_TIMED_OUT"),
    ]
    assert decode_events(encode_events(events)) == events
    assert sums.events() == events
    sums.clear()
    assert not sums
    assert not delivered


def test_excess_topics_share_an_unnamed_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_TOPICS", 2)
    sums = TrafficSums(FakeDeliveries())
    for topic in (b"a", b"b", b"c", b"d", b"a"):
        sums.add_error(topic, topic.decode())
    assert [(event.topic, event.errors, event.last_error) for event in sums.events()] == [
        (b"a", 2, "a"),
        (b"b", 1, "b"),
        (b"", 2, "d"),
    ]


def buckets(**messages: int) -> list[int]:
    """Return messages by the bound of their bucket: `to_5=3`; `beyond` is the last."""
    bounds = {**{f"to_{bound}": index for index, bound in enumerate(BOUNDS_MS)}, "beyond": BUCKET_COUNT - 1}
    counts = [0] * BUCKET_COUNT
    for name, count in messages.items():
        counts[bounds[name]] = count
    return counts


@pytest.mark.parametrize(
    ("counts", "half", "most"),
    [
        (buckets(), None, None),
        (buckets(to_1=100), 0.5, 0.99),
        (buckets(to_10=100), 7.5, 9.95),
        (buckets(to_1=50, to_100=50), 1.0, 99.0),
        (buckets(to_5=98, to_300000=1, beyond=1), round(1 + 4 * 50 / 98, 2), 300_000.0),
        (buckets(beyond=7), 300_000.0, 300_000.0),
    ],
)
def test_percentile_interpolates_within_buckets(counts: list[int], half: float | None, most: float | None) -> None:
    assert percentile(counts, 0.5) == pytest.approx(half)
    assert percentile(counts, 0.99) == pytest.approx(most)
