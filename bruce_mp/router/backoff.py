"""Randomized exponential back-off of the router: the delays before it resumes a paused scope or fetches metadata again.

For a dispatcher's own retries, see `PartitionQueue.start_backoff` in `bruce_mp/dispatcher/queues.py`.

The delays, the results of `RouterBackoff.next_delay_ms`, form sequences.  A sequence begins with a call of this method
and lasts `initial_ms` * 2^(`max_doublings` + 2); the first call after its end begins another sequence.

The first delay of a sequence is `minimum_ms` times a random factor from 1 to 3: all hosts notice the death of a broker
at the same moment, so the factor spreads their next attempts.  Each later delay has a base: `initial_ms` for the second
delay, doubled for each further delay, at most `max_doublings` times.  The delay is the base times a random factor from
0.5 to 1.5, less the time that has passed since the end of the previous delay.  So only errors in quick succession cause
long delays.  No delay is shorter than `minimum_ms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

__all__ = ["LeaderlessBackoff", "RouterBackoff"]


class RouterBackoff:
    """The back-off of one scope, or of metadata fetches.  Times are in ms on a steady clock."""

    def __init__(self, initial_ms: int, max_doublings: int, minimum_ms: int, rng: random.Random) -> None:
        self.apply_config(initial_ms, max_doublings, minimum_ms)
        self._rng = rng
        self._sequence_end_ms: int | None = None
        self._doublings = 0
        self._last_delay_end_ms = 0

    def apply_config(self, initial_ms: int, max_doublings: int, minimum_ms: int) -> None:
        """Replace the parameters; the current sequence of delays keeps its end."""
        self._initial_ms = initial_ms
        self._max_doublings = max_doublings
        self._minimum_ms = minimum_ms

    def next_delay_ms(self, now_ms: int) -> int:
        """Return the next delay of the sequence; the delay begins at `now_ms`."""
        delay_ms = max(self._minimum_ms, self._draw_ms(now_ms))
        self._last_delay_end_ms = now_ms + delay_ms
        return delay_ms

    def _draw_ms(self, now_ms: int) -> int:
        """Return a random delay, which may be shorter than the minimum."""
        if self._sequence_end_ms is None or now_ms >= self._sequence_end_ms:
            self._sequence_end_ms = now_ms + (self._initial_ms << (self._max_doublings + 2))
            self._doublings = 0
            return int(self._minimum_ms * self._rng.uniform(1, 3))
        # `_doublings` may be too large, because a reload of the config may have lowered the maximum.
        base_ms = self._initial_ms << min(self._doublings, self._max_doublings)
        self._doublings = min(self._doublings + 1, self._max_doublings)
        drawn_ms = int(base_ms * self._rng.uniform(0.5, 1.5))
        return drawn_ms - (now_ms - self._last_delay_end_ms)


MAX_LEADERLESS_DELAY_MS: Final = 2_000
"""The longest delay between metadata fetches that look for the leader of a partition."""


class LeaderlessBackoff:
    """One back-off for all partitions without a leader, so that a thousand partitions cause no more fetches than one.

    The delays are short, because PartitionKey messages may go to other partitions until a fetch shows the leaders of
    their own partitions.
    """

    def __init__(self, backoff: RouterBackoff) -> None:
        self.backoff = backoff
        self._planned_time_ms = 0

    def next_fetch_time_ms(self, after_ms: int, now_ms: int) -> int:
        """Return the planned time of a fetch that begins after the time `after_ms`; plan the fetch if needed."""
        if self._planned_time_ms <= after_ms:
            self._planned_time_ms = now_ms + min(self.backoff.next_delay_ms(now_ms), MAX_LEADERLESS_DELAY_MS)
        return self._planned_time_ms
