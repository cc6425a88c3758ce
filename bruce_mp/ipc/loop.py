"""The event loop of a process: one poll over descriptors, ZeroMQ sockets and timers.

The loop polls a ZeroMQ socket's descriptor with poll(2), because ZeroMQ's own poll costs twice as much for a wake-up.
That descriptor announces a frame once, so the loop asks a socket for further frames after each call of its callback.

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
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Loop", "Timer", "has_frame"]

Result = TypeVar("Result")

log: Final = logging.getLogger(__name__)
_THREAD_RETRY_S: Final = 1.0
_READABLE: Final = int(zmq.POLLIN)  # an operation on the enum would cost more than the rest of `has_frame`
_SLACK: Final = 0.25
"""Lateness that `call_about` allows, as a part of the delay."""
_GC_THRESHOLD: Final = 20_000
"""Allocations between two garbage collections. The default is too low for thousands of segments a second, which never
form cycles."""


class Timer:
    """A scheduled call; `cancel()` prevents it."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The caller of the callbacks of ready sources and due timers.

    A source is a descriptor, a ZeroMQ socket, or an object with a fileno().
    """

    def __init__(self) -> None:
        self._poller = select.poll()
        # by descriptor of the source
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._events: dict[int, int] = {}
        self._zmq_sockets: dict[int, zmq.Socket[bytes]] = {}
        self._unread: set[int] = set()
        """Descriptors of ZeroMQ sockets that may have frames which the descriptors do not announce again."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._early: list[tuple[float, int, Timer]] = []
        """The timers of `call_about` with their earliest times; `_timers` has them with their latest times."""
        self._timer_numbers = itertools.count()  # order timers of the same time, which cannot be compared
        self._is_running = False
        self._results: deque[Callable[[], None]] = deque()  # calls that pass the results of threads to callbacks
        self._results_eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self.watch(self._results_eventfd, partial(_handle_result, self._results_eventfd, self._results))
        weakref.finalize(self, os.close, self._results_eventfd).atexit = False  # a thread may still write to it

    def watch(self, source: Any, callback: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Call `callback(events)` when the source is ready; a second call changes the events and the callback.

        For a ZeroMQ socket, the loop always waits for frames.
        """
        descriptor = _descriptor_of(source)
        if self._events.get(descriptor) != events:
            self._events[descriptor] = events
            self._poller.register(descriptor, events)
        if self._callbacks.get(descriptor) != callback:
            self._callbacks[descriptor] = callback
        if isinstance(source, zmq.Socket):
            self._zmq_sockets[descriptor] = source
            self._unread.add(descriptor)

    def unwatch(self, source: Any) -> None:
        descriptor = _descriptor_of(source)
        if self._callbacks.pop(descriptor, None) is not None:
            del self._events[descriptor]
            self._zmq_sockets.pop(descriptor, None)
            self._unread.discard(descriptor)
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
        """Call once in the first round after `delay` seconds; without such a round, a quarter of `delay` later.

        A timer that shares a round costs no wake-up.
        """
        timer = self.call_later(delay * (1 + _SLACK), callback)
        heapq.heappush(self._early, (time.monotonic() + delay, next(self._timer_numbers), timer))
        return timer

    def call_in_thread(self, name: str, function: Callable[[], Result], callback: Callable[[Result], None]) -> None:
        """Run a blocking function in a thread; the loop passes its result to the callback, or raises its exception.

        The thread does not keep the process from ending.
        """

        def run() -> None:
            try:
                self._results.append(partial(callback, function()))
            except BaseException as error:  # noqa: BLE001 - the loop raises it
                self._results.append(partial(_raise, error))
            os.eventfd_write(self._results_eventfd, 1)

        try:
            Thread(target=run, name=name, daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads, or no memory for a stack
            log.warning("The thread %s cannot be started, and is tried again: %s.", name, error)
            self.call_later(_THREAD_RETRY_S, partial(self.call_in_thread, name, function, callback))

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._is_running = False

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Call `after_round` after each poll and its callbacks, to send all their output."""
        self._is_running = True
        gc.freeze()  # the present objects live as long as the process, so the collector need not scan them
        gc.set_threshold(_GC_THRESHOLD)
        while self._is_running:
            self._dispatch(self._poll())
            self._run_due_timers()
            after_round()

    def _poll(self) -> list[tuple[int, int]]:
        """Wait for the first ready source or timer, and return (descriptor, events) of each ready source."""
        sockets = self._zmq_sockets
        unread = {descriptor for descriptor in self._unread if has_frame(sockets[descriptor])}
        ready = [(descriptor, select.POLLIN) for descriptor in unread]
        for descriptor, events in self._poller.poll(0 if unread else self.timeout_ms()):
            if descriptor in unread:
                continue
            if descriptor not in sockets or has_frame(sockets[descriptor]):
                ready.append((descriptor, events))
        self._unread = {descriptor for descriptor, _ in ready if descriptor in sockets}
        return ready

    def _dispatch(self, ready: list[tuple[int, int]]) -> None:
        # A callback may close a ready descriptor, and a later callback may open another with the same number, which is
        # not ready.  The next poll reports the events that are skipped here.
        callbacks = [(descriptor, events, self._callbacks[descriptor]) for descriptor, events in ready]
        for descriptor, events, callback in callbacks:
            if self._callbacks.get(descriptor) is callback:
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
        for timers in (self._timers, self._early):
            while timers and timers[0][0] <= now:
                timer = heapq.heappop(timers)[2]
                if not timer.cancelled:
                    timer.cancelled = True  # a timer of `call_about` is in both heaps
                    timer.callback()


def has_frame(link: zmq.Socket[bytes]) -> bool:
    """Return True if a frame waits at a ZeroMQ socket; its descriptor may be ready without one."""
    return bool(int(link.get(zmq.EVENTS)) & _READABLE)


def _handle_result(eventfd: int, results: deque[Callable[[], None]], _: int) -> None:
    os.eventfd_read(eventfd)  # counts one result, because of EFD_SEMAPHORE
    results.popleft()()


def _raise(error: BaseException) -> None:
    raise error


def _descriptor_of(source: Any) -> int:
    return source if isinstance(source, int) else int(source.fileno())
