"""When metadata is fetched: at the earliest wish, but not twice in a moment."""

from __future__ import annotations

from bruce_mp.router.metadata_refresh import MIN_FETCH_INTERVAL_MS, RefreshSchedule


def test_the_earliest_request_counts_and_a_fetch_clears_requests() -> None:
    refresh = RefreshSchedule()
    dues = [refresh.due_ms]
    refresh.on_started(1000)
    dues.append(refresh.due_ms)
    for at_ms in (3000, 2000, 4000):
        refresh.request(at_ms)
    dues.append(refresh.due_ms)
    refresh.on_started(2000)
    refresh.request(2001)
    assert [*dues, refresh.due_ms] == [0, None, 2000, 2000 + MIN_FETCH_INTERVAL_MS]
