"""The page `/reload`: requests a reload from the supervisor and waits for its outcome."""

from __future__ import annotations

import itertools
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.control_messages import ReloadOutcome, ReloadRequest
from bruce_mp.telemetry.clock import wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReloadRequests"]

TIMEOUT_S: Final = 30.0
"""Wait for the outcome. The supervisor waits 10 s for its processes, and then restarts each that has not confirmed."""


class ReloadRequests:
    """Pending reload requests. `send` sends a control message to the supervisor.

    Request numbers start at the wall-clock time, so that an outcome for a previous status process never matches a
    request of this one.
    """

    def __init__(self, send: Callable[[ReloadRequest], None]) -> None:
        self._send = send
        self._numbers = itertools.count(wall_ms())
        self._lock = Lock()
        self._waiting: dict[int, SimpleQueue[ReloadOutcome]] = {}

    def request(self, *, only_check: bool, timeout_s: float = TIMEOUT_S) -> ReloadOutcome | None:
        """Request a reload and return its outcome, or None on timeout. HTTP threads call this."""
        outcomes: SimpleQueue[ReloadOutcome] = SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = outcomes
        try:
            self._send(ReloadRequest(number, only_check))
            return outcomes.get(timeout=timeout_s)
        except Empty:
            return None
        finally:
            with self._lock:
                del self._waiting[number]

    def on_outcome(self, outcome: ReloadOutcome) -> None:
        """Pass the supervisor's outcome to the thread that waits for it."""
        with self._lock:
            waiting = self._waiting.get(outcome.number)
        if waiting is not None:
            waiting.put(outcome)
