"""When metadata is fetched: at the earliest wish, but not twice in a moment."""

from __future__ import annotations

import random
from collections import Counter

from bruce_mp.router.metadata_refresh import MIN_FETCH_INTERVAL_MS, MIN_REFRESH_INTERVAL_MS, FetchSchedule


def test_the_earliest_request_counts_and_a_fetch_clears_requests() -> None:
    refresh = FetchSchedule(random.Random(1))
    dues = [refresh.due_ms]
    refresh.on_started(1000)
    dues.append(refresh.due_ms)
    for at_ms in (3000, 2000, 4000):
        refresh.request(at_ms)
    dues.append(refresh.due_ms)
    refresh.on_started(2000)
    refresh.request(2001)
    assert [*dues, refresh.due_ms] == [0, None, 2000, 2000 + MIN_FETCH_INTERVAL_MS]


def test_refresh_schedule_coalesces_client_requests_when_they_arrive_fast() -> None:
    """200 requests in 4 seconds cause at most one fetch a second, and a fetch follows the last request."""
    refresh = FetchSchedule(random.Random(1))
    refresh.on_started(0)
    requests, fetches = range(2_000, 6_000, 20), []
    for now_ms in range(2_000, 10_000):
        if now_ms in requests:
            refresh.request_refresh(now_ms)
        if refresh.due_ms is not None and refresh.due_ms <= now_ms:
            fetches.append(now_ms)
            refresh.on_started(now_ms)
    assert fetches == [2_000, 3_000, 4_000, 5_000, 6_000]
    assert fetches[-1] > requests[-1]


def test_refresh_schedule_fetches_at_once_for_an_error_when_a_refresh_waits() -> None:
    refresh = FetchSchedule(random.Random(1))
    refresh.on_started(5_000)
    refresh.request_refresh(5_200)
    assert refresh.due_ms == 5_000 + MIN_REFRESH_INTERVAL_MS
    refresh.request(5_300)
    assert refresh.due_ms == 5_300


def test_refresh_schedule_spreads_the_fetches_of_many_hosts_after_an_error_only() -> None:
    rng, dues = random.Random(1), []
    for _ in range(300):
        refresh = FetchSchedule(rng, spread_s=30)
        refresh.on_started(0)
        refresh.request_after_error(50_000)
        assert refresh.due_ms is not None
        dues.append(refresh.due_ms)
        refresh.request(50_100)
        assert refresh.due_ms <= 50_100
    assert min(dues) >= 50_000
    assert max(dues) < 80_000
    assert max(Counter(due // 1000 for due in dues).values()) <= 22, "10 of 300 hosts a second, on average"


def test_refresh_schedule_keeps_its_moment_in_each_period() -> None:
    refresh = FetchSchedule(random.Random(1), spread_s=30)
    refresh.on_started(0)
    refresh.request_after_error(1_000)
    first = refresh.due_ms
    assert first is not None
    refresh.on_started(first)
    refresh.on_failed(first, 100)
    assert refresh.due_ms == first + 30_000


def test_refresh_schedule_applies_a_reloaded_spread() -> None:
    refresh = FetchSchedule(random.Random(1), spread_s=30)
    refresh.on_started(0)
    refresh.apply_config(0)
    refresh.request_after_error(1_000)
    assert refresh.due_ms == 1_000
