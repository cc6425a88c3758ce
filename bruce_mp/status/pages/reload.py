"""The page `/reload`: requests a reload of the configuration from the supervisor and waits for the outcome."""

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
"""Longest wait for the outcome, in which the supervisor waits 10 s for the other processes to confirm the reload."""


class ReloadRequests:
    """Reload requests that wait for their outcomes. `send` sends a control message to the supervisor.

    Each request has a number, which its outcome repeats. The first number is the time of the wall clock, so an outcome
    that a previous status process has requested never has the number of a request from this process.
    """

    def __init__(self, send: Callable[[ReloadRequest], None]) -> None:
        self._send = send
        self._numbers = itertools.count(wall_ms())
        self._lock = Lock()
        self._waiting: dict[int, SimpleQueue[ReloadOutcome]] = {}

    def request(self, *, only_check: bool, timeout_s: float = TIMEOUT_S) -> ReloadOutcome | None:
        """Request a reload, or only a check of the configuration. Return None if the outcome does not come in time."""
        outcome_queue: SimpleQueue[ReloadOutcome] = SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = outcome_queue
        try:
            self._send(ReloadRequest(number, only_check))
            return outcome_queue.get(timeout=timeout_s)
        except Empty:
            return None
        finally:
            with self._lock:
                del self._waiting[number]

    def on_outcome(self, outcome: ReloadOutcome) -> None:
        """Pass an outcome from the supervisor to the HTTP thread that waits for it."""
        with self._lock:
            outcome_queue = self._waiting.get(outcome.number)
        if outcome_queue is not None:
            outcome_queue.put(outcome)
