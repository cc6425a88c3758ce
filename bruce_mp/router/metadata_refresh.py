"""The schedule of metadata fetches: one fetch serves all requests, at the earliest requested time.

A *refresh* is a fetch because the configured interval has passed or an operator requests it.  Other fetches are caused
by errors, by messages for unknown topics and by changes of the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

__all__ = ["FetchSchedule", "periodic_delay_ms", "spread_delay_ms"]

MIN_FETCH_INTERVAL_MS: Final = 100
"""The shortest time between the starts of two fetches, unless `set_time` sets the start of the second fetch.  It limits
the load that messages for unknown topics cause."""

MIN_REFRESH_INTERVAL_MS: Final = 1_000
"""The shortest time from the start of a fetch to the next refresh."""

MAX_RETRY_DELAY_MS: Final = 5_000
"""The longest delay between fetches while no broker responds, so that messages flow soon after a long outage."""


class FetchSchedule:
    """The time of the next fetch.  Times are in ms on a steady clock.

    Errors reach many hosts at the same time.  To spread the fetches of all hosts, time is divided into periods of
    `spread_s` seconds, and each host draws a random *own moment*: an offset from the start of every period.  A fetch
    after an error waits for the host's next own moment.  If `spread_s` is 0, it does not wait.
    """

    def __init__(self, rng: random.Random, spread_s: int = 0) -> None:
        self._rng = rng
        self.apply_config(spread_s)
        self._requested_ms: int | None = 0  # the first fetch is due at once
        self._not_before_ms = 0
        self._started_ms = -MIN_REFRESH_INTERVAL_MS  # long ago, so that the first refresh is due at once

    @property
    def due_ms(self) -> int | None:
        """The time of the next fetch; None if no fetch is requested."""
        return None if self._requested_ms is None else max(self._requested_ms, self._not_before_ms)

    def apply_config(self, spread_s: int) -> None:
        self._spread_ms = spread_s * 1000
        self._own_moment_ms = spread_delay_ms(spread_s, self._rng) if spread_s else 0
        """The offset of the host's own moment from the start of a period, in ms."""

    def request(self, at_ms: int) -> None:
        """Request a fetch at `at_ms` at the latest."""
        if self._requested_ms is None or at_ms < self._requested_ms:
            self._requested_ms = at_ms

    def request_after_error(self, at_ms: int) -> None:
        """Request a fetch because a broker or a leader is gone: at the host's first own moment at or after `at_ms`."""
        self.request(self._next_own_moment(at_ms))

    def _next_own_moment(self, at_ms: int) -> int:
        return at_ms + (self._own_moment_ms - at_ms) % self._spread_ms if self._spread_ms else at_ms

    def request_refresh(self, now_ms: int) -> None:
        """Request a refresh, at least `MIN_REFRESH_INTERVAL_MS` after the start of the last fetch."""
        self.request(max(now_ms, self._started_ms + MIN_REFRESH_INTERVAL_MS))

    def set_time(self, at_ms: int) -> None:
        """Let the next fetch start at `at_ms`, regardless of `MIN_FETCH_INTERVAL_MS`.

        Only another call of `set_time` can make the fetch earlier.
        """
        self._requested_ms = self._not_before_ms = at_ms

    def on_started(self, now_ms: int) -> None:
        """Clear all requests, because the fetch that has started serves them."""
        self._requested_ms, self._started_ms = None, now_ms
        self._not_before_ms = now_ms + MIN_FETCH_INTERVAL_MS

    def on_failed(self, now_ms: int, delay_ms: int) -> None:
        """Set the next fetch to the host's first own moment after the delay, which is at most `MAX_RETRY_DELAY_MS`."""
        self.set_time(self._next_own_moment(now_ms + min(delay_ms, MAX_RETRY_DELAY_MS)))


def periodic_delay_ms(interval_min: int, rng: random.Random) -> int:
    """Return 80 to 120 % of the interval, in ms, so that the refreshes of many hosts spread."""
    return int(interval_min * 60_000 * rng.uniform(0.8, 1.2))


def spread_delay_ms(spread_s: int, rng: random.Random) -> int:
    """Return a random delay below `spread_s`, in ms."""
    return int(spread_s * 1000 * rng.random())
