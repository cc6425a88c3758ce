"""Watches for changes of the daemon's state, and posts them to the event hook: pauses of partitions, and the health.

`PauseWatch` compares each report of the router with earlier ones, and logs one line for all scopes that have changed. A
scope counts as flowing again only after several reports in a row that lack it, because a partition that brokers refuse
flows for a moment whenever the router tries it again. `HealthWatch` has a thread, because reading the evidence for the
health from a large slab takes long.
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
"""Number of reports in a row that lack a paused scope, after which it counts as flowing.

A single report may also lack a partition because its messages are on their way to another process.
"""
_MAX_NAMED: Final = 5
"""Limit of the scopes that an event names; it gives only the number of further scopes."""
_CHECK_EVERY_S: Final = 1.0
"""Interval of the health checks; processes report at the same interval."""

_Scope = tuple[int | None, bytes, int]
"""(slot, topic, partition) of a dispatcher or partition.

The slot is None for a partition, because the dispatcher of the partition may change during a pause.
"""


class PauseWatch:
    """Watch for pauses of scopes. `post` queues an event for the event hook."""

    def __init__(self, post: Callable[[DaemonEvent], None]) -> None:
        self._post = post
        self._missed: dict[_Scope, int] = {}
        """For each scope that counts as paused, the number of latest reports in a row that lack it."""

    def record(self, paused: Sequence[PausedScope], *, is_complete: bool) -> None:
        """Process the paused scopes in a report of the router. `is_complete` is False if the report lacks some."""
        current = {_scope_of(each): each.state for each in paused}
        new = [scope for scope in current if scope not in self._missed]
        # A scope that an incomplete report lacks may still be paused, so an incomplete report raises no number.
        missed = {scope: self._missed[scope] + int(is_complete) for scope in self._missed if scope not in current}
        flowing = [scope for scope, report_count in missed.items() if report_count >= _REPORTS_UNTIL_FLOWING]
        self._missed = {scope: report_count for scope, report_count in missed.items() if scope not in flowing}
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
    return (None if scope.topic else scope.slot, scope.topic, scope.partition)


def _scope_text(scope: _Scope) -> str:
    slot, topic, partition = scope
    return f"all partitions of dispatcher-{slot}" if slot is not None else partition_text(topic, partition)


class HealthWatch:
    """Thread that assesses the health once a second, if `events.command` is set, and posts its changes to `hook`."""

    def __init__(self, read_evidence: Callable[[], Evidence], hook: EventHook) -> None:
        self._read_evidence = Cached(read_evidence)
        self._hook = hook
        self._state = "healthy"
        self._stop = Event()
        self._thread = Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the present check; do not wait for it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_CHECK_EVERY_S):
            if self._hook.is_enabled:
                self.check()

    def check(self) -> None:
        """Assess the health, and post an event if it has changed."""
        try:
            page = assess_health(self._read_evidence())
        except SlabError:
            return  # the slab changed while it was read
        state = "problem" if page.problems else "warning" if page.warnings else "healthy"
        if state != self._state:
            self._state = state
            self._hook.post(DaemonEvent("health", state, "\n".join(health_lines(page))))
