"""Randomised exponential back-off for pauses and metadata fetches of the router.

A dispatcher's own retries: `bruce_mp/dispatcher/queues.py` `PartitionQueue.start_backoff`.

A sequence of delays lasts `initial_ms` * 2^(`max_double` + 2); the next delay after that begins another sequence.  The
first delay of a sequence is a random 1 to 3 times the minimum, because all hosts notice the death of a broker at the
same moment.  For the other delays, a base starts at `initial_ms` and doubles with each delay, `max_double` times.  Each
of these delays is a random 0.5 to 1.5 times the base, less the time since the end of the previous delay: only errors in
quick succession cause long delays.  No delay is shorter than the minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

__all__ = ["LeaderlessBackoff", "PauseBackoff"]


class PauseBackoff:
    """The back-off of one scope or of metadata fetches.  Times are in ms on a steady clock."""

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
        if self._sequence_end_ms is None or now_ms >= self._sequence_end_ms:
            self._sequence_end_ms = now_ms + (self._initial_ms << (self._max_double + 2))
            self._doublings = 0
            return int(self._minimum_ms * self._rng.uniform(1, 3))
        base_ms = self._initial_ms << min(self._doublings, self._max_double)  # a reload may have lowered the maximum
        self._doublings = min(self._doublings + 1, self._max_double)
        drawn_ms = int(base_ms * self._rng.uniform(0.5, 1.5))
        return drawn_ms - (now_ms - self._last_delay_end_ms)


MAX_LEADERLESS_DELAY_MS: Final = 2_000
"""The longest delay between fetches for a leader."""


class LeaderlessBackoff:
    """One back-off for all partitions without a leader, so that a thousand partitions cause no more fetches than one.

    The delays stay short: without a leader in the metadata, PartitionKey messages go to another partition than that of
    their key.
    """

    def __init__(self, backoff: PauseBackoff) -> None:
        self.backoff = backoff
        self._planned_ms = 0

    def next_fetch_ms(self, after_ms: int, now_ms: int) -> int:
        """Return the time of a fetch later than `after_ms`: the planned one, else one planned now."""
        if self._planned_ms <= after_ms:
            self._planned_ms = now_ms + min(self.backoff.next_delay_ms(now_ms), MAX_LEADERLESS_DELAY_MS)
        return self._planned_ms
