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

_GARBAGE_THRESHOLD: Final = 20_000
"""Garbage collector threshold: segments are allocated by the thousand and never form cycles."""


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
        self._tickets = itertools.count()
        self._running = False

    def watch(self, source: Any, callback: Callable[[int], None], events: int = zmq.POLLIN) -> None:
        """Call `callback(events)` when the source is ready; a second call changes the events and the callback."""
        self._poller.register(source, events)
        self._callbacks[_key(source)] = callback

    def unwatch(self, source: Any) -> None:
        """Stop watching a source."""
        if self._callbacks.pop(_key(source), None) is not None:
            self._poller.unregister(source)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at the time `when`."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._tickets), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay` seconds."""
        return self.call_at(time.monotonic() + delay, callback)

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._running = False

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. `after_round` runs after each round, to send the output that the callbacks gathered."""
        self._running = True
        gc.freeze()  # present objects live as long as the process, so scans of them find nothing
        gc.set_threshold(_GARBAGE_THRESHOLD)
        while self._running:
            self._dispatch(self._poller.poll(self._timeout_ms()))
            self._fire()
            after_round()

    def _dispatch(self, ready: list[tuple[Any, int]]) -> None:
        # A callback may close a descriptor, and another may open one with the same number, which is not the ready one.
        # The next poll reports the events that are skipped here.
        for source, events, callback in [(source, events, self._callbacks[source]) for source, events in ready]:
            if self._callbacks.get(source) is callback:
                callback(events)

    def _timeout_ms(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up: a poll that wakes a fraction of a millisecond early would spin.
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()


def _key(source: Any) -> Any:
    """Return the poller's key of a source: the ZeroMQ socket itself, or the descriptor of any other source."""
    if isinstance(source, int | zmq.Socket):
        return source
    return source.fileno()
