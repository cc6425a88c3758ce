"""Changes of the daemon's state: paused partitions, partitions that flow again, and health.

`PauseWatch` compares the router's reports and logs one line for all partitions that changed. A partition flows again
only after several reports in a row lack its pause, because the router tries a refused partition between its pauses.
`HealthWatch` has a thread, because the evidence takes long to read from a large slab. Both post to the event hook.
"""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.status.cached import Cached
from bruce_mp.status.event_hook import DaemonEvent
from bruce_mp.status.pages.health import assess_health, health_lines
from bruce_mp.status.pages.stalls import partition_text
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.status.event_hook import EventHook
    from bruce_mp.status.pages.health import Evidence
    from bruce_mp.telemetry.broker_status import PausedScope

__all__ = ["HealthWatch", "PauseWatch"]

log = logging.getLogger(__name__)
_REPORTS_UNTIL_FLOWING: Final = 3
"""Reports in a row without a pause after which it is over; one may lack a partition on its way to another process."""
_MAX_NAMED: Final = 5
"""Partitions that an event names; the rest is counted."""
_CHECK_EVERY_S: Final = 1.0
"""Interval of the checks; the daemon's own reports are a second apart."""

_Scope = tuple[int | None, bytes, int]
"""Slot of a paused dispatcher (None for a partition), topic and partition."""


class PauseWatch:
    """The paused scopes, each with the number of reports without it. `post` gets an event for each change."""

    def __init__(self, post: Callable[[DaemonEvent], None]) -> None:
        self._post = post
        self._missed: dict[_Scope, int] = {}

    def record(self, paused: Sequence[PausedScope], *, is_complete: bool) -> None:
        """Compare with a report of the router. `is_complete` is True if it lists all pauses."""
        current = {_scope_of(each): each.state for each in paused}
        new = [scope for scope in current if scope not in self._missed]
        # A report that does not list all pauses may miss a scope that is still paused, so it counts 0.
        missed = {scope: self._missed[scope] + int(is_complete) for scope in self._missed if scope not in current}
        flowing = [scope for scope, reports in missed.items() if reports >= _REPORTS_UNTIL_FLOWING]
        self._missed = {scope: reports for scope, reports in missed.items() if scope not in flowing}
        self._missed |= dict.fromkeys(current, 0)
        if new:
            states = ", ".join(sorted({current[scope] for scope in new}))
            self._report(logging.WARNING, "paused", new, f"Paused ({states}), so messages wait; see /brokers:")
        if flowing:
            self._report(NOTICE, "flowing", flowing, "Messages flow again:")

    def _report(self, level: int, kind: str, scopes: Sequence[_Scope], subject: str) -> None:
        named = ", ".join(_scope_text(scope) for scope in scopes[:_MAX_NAMED])
        more = f" and {len(scopes) - _MAX_NAMED} more" if len(scopes) > _MAX_NAMED else ""
        text = f"{subject} {named}{more}."
        log.log(level, "%s", text, extra={"about": text})
        self._post(DaemonEvent(kind, state=kind, text=text))


def _scope_of(scope: PausedScope) -> _Scope:
    """Return the scope's identity; a partition's slot changes while it is paused."""
    return (None if scope.topic else scope.slot, scope.topic, scope.partition)


def _scope_text(scope: _Scope) -> str:
    slot, topic, partition = scope
    return f"all partitions of dispatcher-{slot}" if slot is not None else partition_text(topic, partition)


class HealthWatch:
    """Thread that assesses the health once a second, if `events.command` is set."""

    def __init__(self, evidence: Callable[[], Evidence], hook: EventHook) -> None:
        self._evidence = Cached(evidence)
        self._hook = hook
        self._state = "healthy"
        self._stop = Event()
        self._thread = Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the present check."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_CHECK_EVERY_S):
            if self._hook.is_enabled:
                self.check()

    def check(self) -> None:
        try:
            page = assess_health(self._evidence())
        except SlabError:
            return  # the slab changed during the reading
        state = "problem" if page.problems else "warning" if page.warnings else "healthy"
        if state != self._state:
            self._state = state
            self._hook.post(DaemonEvent("health", state, "\n".join(health_lines(page))))
