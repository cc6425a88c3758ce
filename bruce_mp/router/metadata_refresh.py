"""The schedule of metadata fetches: one fetch serves all requests, at the earliest requested time.

Errors, messages for unknown topics and changes of the configuration cause fetches.  A *refresh* is a fetch without such
a cause: the configured interval has passed, or an operator requests the fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

__all__ = ["FetchSchedule", "periodic_delay_ms", "spread_delay_ms"]

MIN_FETCH_INTERVAL_MS: Final = 100
"""The shortest time between the starts of two fetches, unless `set_time` sets the start of the second.  It limits the
load that messages for unknown topics cause."""

MIN_REFRESH_INTERVAL_MS: Final = 1_000
"""The shortest time from the start of a fetch to the next refresh."""

MAX_RETRY_DELAY_MS: Final = 5_000
"""The longest delay between fetches while no broker responds, so that messages flow soon after a long outage."""


class FetchSchedule:
    """The time of the next fetch.  Times are in ms on a steady clock.

    Errors reach many hosts at the same time.  So time is divided into periods of `spread_s` seconds.  Each host draws
    its own moment, which is the same in each period, and fetches after errors wait for the next such moment.  The
    fetches of all hosts then spread evenly over a period.
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
        """The host's own moment, in ms from the start of each period."""

    def request(self, at_ms: int) -> None:
        """Request a fetch at `at_ms` at the latest."""
        if self._requested_ms is None or at_ms < self._requested_ms:
            self._requested_ms = at_ms

    def request_after_error(self, at_ms: int) -> None:
        """Request a fetch because a broker or a leader is gone: at the host's first own moment after `at_ms`."""
        self.request(self._next_own_moment(at_ms))

    def _next_own_moment(self, at_ms: int) -> int:
        return at_ms + (self._own_moment_ms - at_ms) % self._spread_ms if self._spread_ms else at_ms

    def request_refresh(self, now_ms: int) -> None:
        """Request a refresh, at least `MIN_REFRESH_INTERVAL_MS` after the start of the last fetch."""
        self.request(max(now_ms, self._started_ms + MIN_REFRESH_INTERVAL_MS))

    def set_time(self, at_ms: int) -> None:
        """Let the next fetch start at `at_ms`, regardless of the minimum interval.

        Later requests cannot make the fetch earlier; only another call of `set_time` can.  After a change of brokers or
        connection settings, callers pass the present time.
        """
        self._requested_ms = self._not_before_ms = at_ms

    def on_started(self, now_ms: int) -> None:
        """Clear all requests, because the started fetch serves them; later requests are for the next fetch."""
        self._requested_ms, self._started_ms = None, now_ms
        self._not_before_ms = now_ms + MIN_FETCH_INTERVAL_MS

    def on_failed(self, now_ms: int, delay_ms: int) -> None:
        """Schedule the next fetch at the host's own moment after the delay; only `set_time` can make the fetch earlier.

        A delay above `MAX_RETRY_DELAY_MS` is shortened to `MAX_RETRY_DELAY_MS`.
        """
        self.set_time(self._next_own_moment(now_ms + min(delay_ms, MAX_RETRY_DELAY_MS)))


def periodic_delay_ms(interval_min: int, rng: random.Random) -> int:
    """Return a delay of 80 to 120 % of the interval, so that the refreshes of many hosts spread."""
    return int(interval_min * 60_000 * rng.uniform(0.8, 1.2))


def spread_delay_ms(spread_s: int, rng: random.Random) -> int:
    """Return a random delay below `spread_s`, so that hosts that start at the same time fetch at different times."""
    return int(spread_s * 1000 * rng.random())
