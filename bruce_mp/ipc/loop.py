"""The event loop of a process: it waits for descriptors, ZeroMQ sockets and timers, and calls their callbacks.

Each ZeroMQ socket has a descriptor. The loop waits for this descriptor with poll(2), because a wake-up by ZeroMQ's own
poll costs twice as much. The descriptor becomes ready only once for several frames, and sometimes without a frame. So a
socket's callback receives frames until none is left, or returns True to be called again.

Times are `time.monotonic()` in seconds.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import logging
import math
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from threading import Thread
from typing import Any, Final, TypeVar

__all__ = ["Callback", "Loop", "Timer"]

Result = TypeVar("Result")
Callback = Callable[[int], bool | None]
"""A function of the ready events; it returns True to be called again in the next round, even without an event."""

log: Final = logging.getLogger(__name__)
_THREAD_RETRY_S: Final = 1.0
_MAX_LATENESS: Final = 0.25
"""The maximum lateness of a `call_about`, as a fraction of its delay."""
_GC_THRESHOLD: Final = 20_000
"""Number of allocations between two garbage collections. With Python's default, the thousands of segments each second
would cause many useless collections: segments never form cycles."""


class Timer:
    """A scheduled call; `cancel()` prevents it."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop. A *source* is a descriptor, a ZeroMQ socket, or an object with a fileno().

    Each round calls the callbacks of all ready sources, then the callbacks of all due timers.
    """

    def __init__(self) -> None:
        self._poller = select.poll()
        # These dictionaries have the descriptor of a source as the key.
        self._callbacks: dict[int, Callback] = {}
        self._events: dict[int, int] = {}
        self._unfinished: set[int] = set()
        """Descriptors of sources whose callbacks the next round calls even if poll(2) does not report them."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._early_timers: list[tuple[float, int, Timer]] = []
        """The timers of `call_about` with their earliest times; `_timers` has them with their latest times."""
        self._timer_numbers = itertools.count()  # so that the heap never compares two timers of the same time
        self._is_running = False
        self._results: deque[Callable[[], None]] = deque()  # calls that pass the results of threads to callbacks
        self._results_eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self.watch(self._results_eventfd, partial(_handle_result, self._results_eventfd, self._results))
        # `atexit` is False, because a thread may still write to the eventfd when the process exits.
        weakref.finalize(self, os.close, self._results_eventfd).atexit = False

    def watch(self, source: Any, callback: Callback, events: int = select.POLLIN) -> None:
        """Call `callback(events)` whenever the source is ready; for a known source, replace events and callback.

        Watch a ZeroMQ socket before its first use: its descriptor may not report frames of the time before.
        """
        descriptor = _descriptor_of(source)
        if self._events.get(descriptor) != events:
            self._events[descriptor] = events
            self._poller.register(descriptor, events)
        if self._callbacks.get(descriptor) != callback:
            self._callbacks[descriptor] = callback

    def unwatch(self, source: Any) -> None:
        descriptor = _descriptor_of(source)
        if self._callbacks.pop(descriptor, None) is not None:
            del self._events[descriptor]
            self._unfinished.discard(descriptor)
            self._poller.unregister(descriptor)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at the time `when`."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay` seconds."""
        return self.call_at(time.monotonic() + delay, callback)

    def call_about(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once, after `delay` seconds at the earliest and a quarter of `delay` later at the latest.

        The loop wakes up for this timer only at the latest time. If another source or timer causes a round between the
        two times, this round makes the call, and the timer costs no wake-up.
        """
        timer = self.call_later(delay * (1 + _MAX_LATENESS), callback)
        heapq.heappush(self._early_timers, (time.monotonic() + delay, next(self._timer_numbers), timer))
        return timer

    def call_in_thread(self, name: str, function: Callable[[], Result], callback: Callable[[Result], None]) -> None:
        """Run a blocking function in a new thread; the loop then calls the callback with the function's result.

        If the function raises an exception, the loop raises the exception. The thread does not delay the process's end.
        """

        def run() -> None:
            try:
                self._results.append(partial(callback, function()))
            except BaseException as error:  # noqa: BLE001 - the loop raises it
                self._results.append(partial(_raise, error))
            os.eventfd_write(self._results_eventfd, 1)

        try:
            Thread(target=run, name=name, daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads is reached, or there is no memory for a stack
            log.warning("The thread %s cannot be started, and is tried again: %s.", name, error)
            self.call_later(_THREAD_RETRY_S, partial(self.call_in_thread, name, function, callback))

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._is_running = False

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Call `after_round` at the end of each round, to send the output of its callbacks."""
        self._is_running = True
        gc.freeze()  # the present objects live as long as the process, so the collector need not scan them
        gc.set_threshold(_GC_THRESHOLD)
        while self._is_running:
            self._dispatch(self._poll())
            self._run_due_timers()
            after_round()

    def _poll(self) -> list[tuple[int, int]]:
        """Wait until a source is ready or a timer is due, and return (descriptor, events) of each source to call."""
        unfinished, self._unfinished = self._unfinished, set()
        ready = self._poller.poll(0 if unfinished else self.timeout_ms())
        if unfinished:
            ready += [(descriptor, select.POLLIN) for descriptor in unfinished.difference(map(itemgetter(0), ready))]
        return ready

    def _dispatch(self, ready: list[tuple[int, int]]) -> None:
        """Call the callbacks of the ready sources."""
        # A callback may close another ready descriptor, and the next callback may open a source that gets the same
        # number and is not ready.  So a descriptor with a changed callback is skipped; if it is ready, the next poll
        # reports it again.  (Callbacks of ZeroMQ sockets do not change.)
        callbacks = [(descriptor, events, self._callbacks[descriptor]) for descriptor, events in ready]
        for descriptor, events, callback in callbacks:
            if self._callbacks.get(descriptor) is callback and callback(events) and descriptor in self._callbacks:
                self._unfinished.add(descriptor)

    def timeout_ms(self) -> int | None:
        """Return the time until the next timer is due; None if there is no timer."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up: after a poll that ends a fraction of a millisecond early, the loop would poll again and again
        # until the timer is due.
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _run_due_timers(self) -> None:
        now = time.monotonic()
        for timers in (self._timers, self._early_timers):
            while timers and timers[0][0] <= now:
                timer = heapq.heappop(timers)[2]
                if not timer.cancelled:
                    timer.cancelled = True  # because a timer of `call_about` is in both heaps, but is called once
                    timer.callback()


def _handle_result(eventfd: int, results: deque[Callable[[], None]], _: int) -> None:
    os.eventfd_read(eventfd)  # lowers the number of waiting results by 1, because of EFD_SEMAPHORE
    results.popleft()()


def _raise(error: BaseException) -> None:
    raise error


def _descriptor_of(source: Any) -> int:
    return source if isinstance(source, int) else int(source.fileno())
