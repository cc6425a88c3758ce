"""The event loop of a process: descriptors, ZeroMQ sockets and timers under one poll.

It sleeps until something happens.  Times are `time.monotonic()` in seconds.
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
"""Places in the slab come and go by the thousand, and are never in cycles."""


class Timer:
    """A call at a time; `cancel()` prevents it."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


class Loop:
    """Calls back when a source is ready or a time has come.

    A source is a descriptor, a ZeroMQ socket, or something with a fileno().
    """

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Any, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._tickets = itertools.count()
        self._running = False

    def watch(self, source: Any, callback: Callable[[int], None], events: int = zmq.POLLIN) -> None:
        """Call `callback(events)` when the source is ready; also changes the events of a source."""
        self._poller.register(source, events)
        self._callbacks[_key(source)] = callback

    def forget(self, source: Any) -> None:
        """Stop watching a source."""
        if self._callbacks.pop(_key(source), None) is not None:
            self._poller.unregister(source)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at a time."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._tickets), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay` seconds."""
        return self.call_at(time.monotonic() + delay, callback)

    def stop(self) -> None:
        """Make `run` return after the present round."""
        self._running = False

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`.  `after_round` is called after each round: the place to send what has gathered."""
        self._running = True
        gc.freeze()  # what there is now stays; looking through it again and again would find nothing
        gc.set_threshold(_GARBAGE_THRESHOLD)
        while self._running:
            self._dispatch(self._poller.poll(self._timeout_ms()))
            self._fire()
            after_round()

    def _dispatch(self, ready: list[tuple[Any, int]]) -> None:
        # A callback may close a descriptor and another open one of the same number: what was ready is not that one.
        # Poll says again what is passed over here.
        for source, events, callback in [(source, events, self._callbacks[source]) for source, events in ready]:
            if self._callbacks.get(source) is callback:
                callback(events)

    def _timeout_ms(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up: a poll that wakes a fraction of a millisecond early would only spin.
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()


def _key(source: Any) -> Any:
    """What the poller reports for a source: ZeroMQ sockets themselves, descriptors for everything else."""
    if isinstance(source, int | zmq.Socket):
        return source
    return source.fileno()
