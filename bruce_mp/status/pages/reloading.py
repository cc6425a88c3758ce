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

PATIENCE_S: Final = 30.0


class ReloadRequests:
    """Pending reload requests. `tell` sends a control message to the supervisor.

    Request numbers start at the wall-clock time, so the answer to a previous status process's request is never mistaken
    for ours.
    """

    def __init__(self, tell: Callable[[ReloadRequest], None]) -> None:
        self._tell = tell
        self._numbers = itertools.count(wall_ms())
        self._lock = Lock()
        self._waiting: dict[int, SimpleQueue[ReloadOutcome]] = {}

    def request(self, *, only_check: bool, patience_s: float = PATIENCE_S) -> ReloadOutcome | None:
        """Request a reload and return its outcome, or None on timeout. HTTP threads call this."""
        answers: SimpleQueue[ReloadOutcome] = SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answers
        try:
            self._tell(ReloadRequest(number, only_check))
            return answers.get(timeout=patience_s)
        except Empty:
            return None
        finally:
            with self._lock:
                del self._waiting[number]

    def answer(self, outcome: ReloadOutcome) -> None:
        """Deliver the supervisor's outcome to the waiting request."""
        with self._lock:
            waiting = self._waiting.get(outcome.number)
        if waiting is not None:
            waiting.put(outcome)
