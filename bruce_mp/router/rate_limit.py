"""Rate limits: the router admits a limited number of a topic's messages in each window of time and discards the others.

There is one router, so the limit is exact for any number of inputs.  A message counts in the window in which its run
arrived at the input, even if the router reads the run later, after the first metadata or a restart.  Windows have a
fixed length; the first window begins with the topic's first message.  Messages over the limit also count, but messages
that are discarded for other reasons do not.

A counted run carries FLAG_ADMITTED, so that the next router does not count it again.  But the next router has lost the
counts of the windows, so after a restart it admits the messages of at most one more window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.pending_batch import UNLIMITED
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.config.sections import RateLimitConfig
    from bruce_mp.discards.settlement import Discards
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["RateLimits", "RateWindows"]

MAX_LATENESS_MS: Final = 1_000
"""How long the count of a window is kept after the window's end, for runs that the router reads late.  Runs that the
router reads even later count in the oldest kept window."""


class RateWindows:
    """The windows of one topic, numbered from 0.  Times are in ms on the steady clock of arrival times."""

    def __init__(self, interval_ms: int, max_count: int) -> None:
        self._interval_ms = interval_ms
        self._max_count = max_count
        late_window_count = -(-MAX_LATENESS_MS // interval_ms)  # rounded up
        self._kept_window_count = late_window_count + 1  # the newest window is also kept
        self._origin_ms: int | None = None
        """The start of window 0."""
        self._newest_window = 0
        self._counts: dict[int, int] = {}
        """The number of messages in each kept window, by the number of the window."""

    def matches(self, rule: RateLimitConfig) -> bool:
        return (self._interval_ms, self._max_count) == (rule.interval_ms, rule.max_count)

    def admit(self, record_count: int, arrived_ms: int) -> int:
        """Count messages that arrived at `arrived_ms`; return how many to admit: the first ones."""
        if self._origin_ms is None:
            self._origin_ms = arrived_ms
        window = (arrived_ms - self._origin_ms) // self._interval_ms
        if window > self._newest_window:
            self._newest_window = window
            self._counts = {
                number: count for number, count in self._counts.items() if number > window - self._kept_window_count
            }
        # Very late runs count in the oldest kept window.  A run of another input may even have arrived before window 0.
        window = max(window, self._newest_window - self._kept_window_count + 1, 0)
        earlier_count = self._counts.get(window, 0)
        self._counts[window] = earlier_count + record_count
        return min(record_count, max(0, self._max_count - earlier_count))


class RateLimits:
    """The rate limits of all topics.  `rule_of` returns the rule for a topic name, or None if there is no limit."""

    def __init__(self, slab: Slab, discards: Discards, rule_of: Callable[[bytes], RateLimitConfig | None]) -> None:
        self._slab = slab
        self._discards = discards
        self._rule_of = rule_of
        self._windows: dict[int, RateWindows | None] = {}
        """By topic number: the windows of the topic, or None if the topic has no limit."""
        self._names: dict[int, bytes] = {}
        """The names of the topics in `_windows`, by topic number."""

    def apply_config(self, rule_of: Callable[[bytes], RateLimitConfig | None]) -> None:
        """Replace the rules; a topic with an unchanged rule keeps its windows."""
        self._rule_of = rule_of
        for topic, windows in list(self._windows.items()):
            rule = rule_of(self._names[topic])
            if windows is None or rule is None or not windows.matches(rule):
                del self._windows[topic]

    def remove(self, topic: int) -> None:
        self._windows.pop(topic, None)
        self._names.pop(topic, None)

    def admit(
        self, topic: int, name: bytes, segments: Sequence[Segment], arrived_ms: int, now_ms: int
    ) -> Sequence[Segment]:
        """Return the messages that the limit admits, and discard the others; `segments` are parts of one run."""
        windows = self._windows_of(topic, name)
        if windows is None or not segments or self._slab.view[self._flags_offset(segments[0])] & lay.FLAG_ADMITTED:
            return segments
        arrived_ms = min(arrived_ms, now_ms)  # an arrival time from the clock of an earlier daemon may be in the future
        admitted: list[Segment] = []
        for segment in segments:
            first, rest = self._split(segment, windows.admit(segment.records, arrived_ms))
            if first is not None:
                admitted.append(first)
            if rest is not None:
                self._discards.settle([rest], DiscardReason.RATE_LIMIT, name, Counter.DiscardDueToRateLimit)
        if admitted:
            self._slab.view[self._flags_offset(admitted[0])] |= lay.FLAG_ADMITTED
        return admitted

    def _flags_offset(self, segment: Segment) -> int:
        return self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_FLAGS

    def has_limit(self, topic: int, name: bytes) -> bool:
        return self._windows_of(topic, name) is not None

    def _windows_of(self, topic: int, name: bytes) -> RateWindows | None:
        if topic not in self._windows:
            self._names[topic] = name
            rule = self._rule_of(name)
            windows = None
            if rule is not None and rule.max_count is not None:
                windows = RateWindows(rule.interval_ms, rule.max_count)
            self._windows[topic] = windows
        return self._windows[topic]

    def _split(self, segment: Segment, record_count: int) -> tuple[Segment | None, Segment | None]:
        """Split a segment after `record_count` messages; an empty part is None.

        `split_at` reads the headers of messages, so it is called only if neither part is empty.
        """
        if record_count >= segment.records:
            return segment, None
        return kernels.split_at(self._slab, segment, record_count, UNLIMITED) if record_count else (None, segment)
