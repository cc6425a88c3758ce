"""The event loop of a process: one poll over descriptors, ZeroMQ sockets and timers.

Times are `time.monotonic()` in seconds.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Loop", "Timer"]

_GC_THRESHOLD: Final = 20_000
"""Allocations between two runs of the garbage collector; the default is too low for thousands of segments a second,
which never form cycles."""


class Timer:
    """A scheduled call; `cancel()` prevents it."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Prevent the call."""
        self.cancelled = True


class Loop:
    """A dispatcher of callbacks for ready sources and due timers.

    A source is a descriptor, a ZeroMQ socket, or an object with a fileno().
    """

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Any, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_numbers = itertools.count()  # order timers of the same time, which cannot be compared
        self._running = False

    def watch(self, source: Any, callback: Callable[[int], None], events: int = zmq.POLLIN) -> None:
        """Call `callback(events)` when the source is ready; a second call changes the events and the callback."""
        self._poller.register(source, events)
        self._callbacks[_poll_key(source)] = callback

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        if self._callbacks.pop(_poll_key(source), None) is not None:
            self._poller.unregister(source)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at `when`."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay` seconds."""
        return self.call_at(time.monotonic() + delay, callback)

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._running = False

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Call `after_round` after each poll and its callbacks, to send their gathered output."""
        self._running = True
        gc.freeze()  # the present objects live as long as the process, so the collector need not scan them
        gc.set_threshold(_GC_THRESHOLD)
        while self._running:
            self._dispatch(self._poller.poll(self.timeout_ms()))
            self._run_due_timers()
            after_round()

    def _dispatch(self, ready: list[tuple[Any, int]]) -> None:
        # A callback may close a ready descriptor, and a later one may open another with the same number, which is not
        # ready.  The next poll reports the events that are skipped here.
        for source, events, callback in [(source, events, self._callbacks[source]) for source, events in ready]:
            if self._callbacks.get(source) is callback:
                callback(events)

    def timeout_ms(self) -> int | None:
        """Return the time until the first timer; None without one."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up, because a poll that wakes a fraction of a millisecond early would spin.
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _run_due_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()


def _poll_key(source: Any) -> Any:
    """Return the poller's key of a source: the ZeroMQ socket itself, or the descriptor of any other source."""
    if isinstance(source, int | zmq.Socket):
        return source
    return source.fileno()
