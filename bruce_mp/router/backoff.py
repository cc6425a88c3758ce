"""Randomized exponential back-off for pauses and metadata fetches of the router.

For a dispatcher's own retries, see `PartitionQueue.start_backoff` in `bruce_mp/dispatcher/queues.py`.

Delays form sequences.  A sequence lasts `initial_ms` * 2^(`max_double` + 2) from the request for its first delay; the
first request after its end begins another sequence.  The first delay of a sequence is the minimum times a random factor
from 1 to 3: all hosts notice the death of a broker at the same moment, so the factor spreads their next attempts.  Each
later delay is a base times a random factor from 0.5 to 1.5, less the time since the end of the previous delay, so that
only errors in quick succession cause long delays.  The base is `initial_ms` for the second delay, and doubles for each
further delay, at most `max_double` times.  No delay is shorter than the minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

__all__ = ["LeaderlessBackoff", "PauseBackoff"]


class PauseBackoff:
    """The back-off of one scope (a partition or a dispatcher) or of metadata fetches.

    Times are in ms on a steady clock.
    """

    def __init__(self, initial_ms: int, max_double: int, minimum_ms: int, rng: random.Random) -> None:
        self.apply_config(initial_ms, max_double, minimum_ms)
        self._rng = rng
        self._sequence_end_ms: int | None = None
        self._doublings = 0
        self._last_delay_end_ms = 0

    def apply_config(self, initial_ms: int, max_double: int, minimum_ms: int) -> None:
        """Replace the parameters; the current sequence of delays keeps its end."""
        self._initial_ms = initial_ms
        self._max_double = max_double
        self._minimum_ms = minimum_ms

    def next_delay_ms(self, now_ms: int) -> int:
        """Return the delay before the next retry, and advance in the sequence of delays."""
        delay_ms = max(self._minimum_ms, self._draw_ms(now_ms))
        self._last_delay_end_ms = now_ms + delay_ms
        return delay_ms

    def _draw_ms(self, now_ms: int) -> int:
        """Return a random delay, which may be shorter than the minimum."""
        if self._sequence_end_ms is None or now_ms >= self._sequence_end_ms:
            self._sequence_end_ms = now_ms + (self._initial_ms << (self._max_double + 2))
            self._doublings = 0
            return int(self._minimum_ms * self._rng.uniform(1, 3))
        # `_doublings` may be too large, because a reload of the config may have lowered the maximum.
        base_ms = self._initial_ms << min(self._doublings, self._max_double)
        self._doublings = min(self._doublings + 1, self._max_double)
        drawn_ms = int(base_ms * self._rng.uniform(0.5, 1.5))
        return drawn_ms - (now_ms - self._last_delay_end_ms)


MAX_LEADERLESS_DELAY_MS: Final = 2_000
"""The longest delay between metadata fetches that look for the leader of a partition."""


class LeaderlessBackoff:
    """One back-off for all partitions without a leader, so that a thousand partitions cause no more fetches than one.

    The delays stay short, because a partition key chooses another partition while metadata shows no leader for its own.
    """

    def __init__(self, backoff: PauseBackoff) -> None:
        self.backoff = backoff
        self._planned_ms = 0

    def next_fetch_ms(self, after_ms: int, now_ms: int) -> int:
        """Return the time of the planned fetch if it is later than `after_ms`; else plan another fetch."""
        if self._planned_ms <= after_ms:
            self._planned_ms = now_ms + min(self.backoff.next_delay_ms(now_ms), MAX_LEADERLESS_DELAY_MS)
        return self._planned_ms
