"""The lengths of pauses."""

from __future__ import annotations

import random
from typing import Final

import pytest

from bruce_mp.router.backoff import MAX_LEADERLESS_DELAY_MS, LeaderlessBackoff, RouterBackoff
from bruce_mp.router.metadata_refresh import (
    MAX_RETRY_DELAY_MS,
    MIN_FETCH_INTERVAL_MS,
    FetchSchedule,
    periodic_delay_ms,
    spread_delay_ms,
)

INITIAL: Final = 5000
DOUBLINGS: Final = 4
MINIMUM: Final = 3000
FIRST: Final = 2 * MINIMUM
"""The first delay with the middle of each range."""
WINDOW: Final = INITIAL << (DOUBLINGS + 2)


class Drawn(random.Random):
    """Draws the same share of a range each time."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._share


def delays(share: float, count: int) -> list[int]:
    """The delays of pauses that follow one another at once."""
    backoff = RouterBackoff(INITIAL, DOUBLINGS, MINIMUM, Drawn(share))
    now, found = 1000, []
    for _ in range(count):
        delay = backoff.next_delay_ms(now)
        found.append(delay)
        now += delay
    return found


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [3000, 3000, 5000, 10_000, 20_000, 40_000, 40_000]),
        (0.5, [6000, 5000, 10_000, 20_000, 40_000, 80_000, 80_000]),
        (1.0, [9000, 7500, 15_000, 30_000, 60_000, 120_000]),
    ],
)
def test_the_first_pause_is_short_and_later_ones_double(share: float, expected: list[int]) -> None:
    assert delays(share, len(expected)) == expected


def test_time_since_the_last_pause_is_deducted() -> None:
    backoff = RouterBackoff(INITIAL, DOUBLINGS, 0, Drawn(0.5))
    assert backoff.next_delay_ms(0) == 0
    assert backoff.next_delay_ms(2000) == INITIAL - 2000
    assert backoff.next_delay_ms(INITIAL + 60_000) == 0


def test_a_window_ends_and_the_backoff_restarts() -> None:
    backoff = RouterBackoff(INITIAL, DOUBLINGS, MINIMUM, Drawn(0.5))
    assert backoff.next_delay_ms(0) == FIRST
    assert backoff.next_delay_ms(FIRST) == INITIAL
    assert backoff.next_delay_ms(WINDOW - 1) == MINIMUM  # the back-off is over long since, but not the window
    assert backoff.next_delay_ms(WINDOW) == FIRST
    assert backoff.next_delay_ms(WINDOW + FIRST) == INITIAL


def test_many_leaderless_partitions_request_as_often_as_one() -> None:
    backoff = LeaderlessBackoff(RouterBackoff(INITIAL, DOUBLINGS, MINIMUM, Drawn(0.5)))
    first = {backoff.next_fetch_time_ms(0, now) for now in range(100)}
    assert first == {min(FIRST, MAX_LEADERLESS_DELAY_MS)}
    (later,) = {backoff.next_fetch_time_ms(FIRST, FIRST + 5) for _ in range(100)}
    assert later - FIRST - 5 == min(INITIAL - 5, MAX_LEADERLESS_DELAY_MS)


def test_the_earliest_request_counts_and_fetches_keep_their_spacing() -> None:
    refresh = FetchSchedule(random.Random(1))
    dues = [refresh.due_ms]
    refresh.on_started(1000)
    dues.append(refresh.due_ms)
    for at_ms in (5000, 1001, 7000):
        refresh.request(at_ms)
    dues.append(refresh.due_ms)
    assert dues == [0, None, 1000 + MIN_FETCH_INTERVAL_MS]


def test_requests_do_not_shorten_the_backoff_of_a_failed_fetch() -> None:
    refresh = FetchSchedule(random.Random(1))
    refresh.on_started(1000)
    refresh.on_failed(6000, 3000)
    refresh.request(1500)
    assert refresh.due_ms == 9000


def test_the_backoff_of_failed_fetches_is_bounded() -> None:
    refresh = FetchSchedule(random.Random(1))
    refresh.on_started(1000)
    refresh.on_failed(6000, 1_000_000)
    assert refresh.due_ms == 6000 + MAX_RETRY_DELAY_MS


def test_a_postponed_schedule_waits_for_all_requests_but_an_urgent_one() -> None:
    schedule = FetchSchedule(random.Random(1))
    schedule.set_time(500)
    schedule.request(100)
    assert schedule.due_ms == 500
    schedule.set_time(200)
    assert schedule.due_ms == 200


def test_delays_spread_over_their_range() -> None:
    rng = random.Random(1)
    periodic = [periodic_delay_ms(15, rng) for _ in range(1000)]
    starts = [spread_delay_ms(60, rng) for _ in range(1000)]
    assert 720_000 <= min(periodic) < 725_000
    assert 1_075_000 < max(periodic) <= 1_080_000
    assert 0 <= min(starts) < 1000
    assert 59_000 < max(starts) < 60_000
    assert spread_delay_ms(0, rng) == 0
