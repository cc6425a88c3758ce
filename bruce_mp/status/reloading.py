"""The page `/reload`: has the supervisor read the configuration anew, and waits for what comes of it."""

from __future__ import annotations

import itertools
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.pipes.control import ReloadOutcome, ReloadRequest
from bruce_mp.telemetry.clock import wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReloadDesk"]

PATIENCE_S: Final = 30.0


class ReloadDesk:
    """Where requests wait for their outcome.  `tell` says a word to the supervisor.

    Requests are numbered from the time on, so that no outcome is taken for that of a status process before.
    """

    def __init__(self, tell: Callable[[ReloadRequest], None]) -> None:
        self._tell = tell
        self._numbers = itertools.count(wall_ms())
        self._lock = Lock()
        self._waiting: dict[int, SimpleQueue[ReloadOutcome]] = {}

    def ask(self, *, only_check: bool, patience_s: float = PATIENCE_S) -> ReloadOutcome | None:
        """What came of a request; None if that was not said in time.  For the threads of the pages."""
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
        """The supervisor says what came of one."""
        with self._lock:
            waiting = self._waiting.get(outcome.number)
        if waiting is not None:
            waiting.put(outcome)
