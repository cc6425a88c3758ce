"""The end of the daemon, in phases: take in no more, deliver what there is, stop.

    RUNNING ──SIGTERM──▶ INTAKE ──input is done──▶ DELIVERY ──slab is empty──▶ STOPPING ──all are gone──▶ OVER
       └──────────── the daemon cannot go on, or the time is over: straight to ────────▲

First the datagram socket takes no new messages; those that the kernel has already are still received.  A service
manager's socket goes on taking some, which wait for the next daemon.  Whether
everything is delivered is counted in the slab, not asked of the processes: they may die meanwhile, and are started
again as ever.  `step` is called after every event and when `due` has come; it never waits.
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.supervisor.remains import held_messages
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.crew import Crew
    from bruce_mp.supervisor.intake import Intake

__all__ = ["Phase", "Shutdown"]

INTAKE_PATIENCE_S: Final = 2.0
LOOK_EVERY_S: Final = 0.05
LOOK_SHARE: Final = 4
"""A look may take 1 of so many parts of the time: a large slab takes long to count."""

log = logging.getLogger(__name__)


@unique
class Phase(Enum):
    RUNNING = auto()
    INTAKE = auto()
    DELIVERY = auto()
    STOPPING = auto()
    OVER = auto()


class Shutdown:
    """Leads the crew through the phases."""

    def __init__(self, crew: Crew, slab: Slab, max_delay_s: float, intake: Intake) -> None:
        self._crew = crew
        self._slab = slab
        self.max_delay_s = max_delay_s
        self._intake = intake
        self._deadline = 0.0
        self._intake_until = 0.0
        self.phase = Phase.RUNNING
        self.due: float | None = None

    def request(self, *, keeps_sockets: bool = False) -> None:
        """Begin; or, when it was requested before, hurry.  `keeps_sockets`: others will receive there."""
        now = time.monotonic()
        if self.phase is Phase.RUNNING:
            log.log(NOTICE, "Shutting down; delivery of what is left may take %g s.", self.max_delay_s)
            self._deadline = now + self.max_delay_s
            self._intake_until = min(now + INTAKE_PATIENCE_S, self._deadline)
            if not keeps_sockets:
                self._intake.close()
            self._crew.drain_inputs(goes_on=keeps_sockets or self._intake.goes_on)
            self.phase = Phase.INTAKE
        elif self.phase in {Phase.INTAKE, Phase.DELIVERY}:
            log.log(NOTICE, "Asked again to shut down: not waiting for deliveries any longer.")
            self._deadline = now

    def step(self) -> None:
        """Do what the phase has to do now."""
        if self._crew.failure and self.phase in {Phase.RUNNING, Phase.INTAKE, Phase.DELIVERY}:
            log.critical("%s.", self._crew.failure)
            self._stop()
        match self.phase:
            case Phase.INTAKE:
                self._take_in()
            case Phase.DELIVERY:
                self._deliver()
            case Phase.STOPPING:
                self._wait_for_all()

    def _take_in(self) -> None:
        self.due = self._intake_until
        if self._crew.inputs_have_ended or self._is_late:
            self._crew.drain_others()
            self.phase = Phase.DELIVERY
            self._deliver()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._intake_until

    @property
    def _more_may_come(self) -> bool:
        """Whether an input may bring more.  One that runs and did not end in time hangs: nobody waits for it."""
        hang = self._crew.inputs_run and self._is_late
        return not self._crew.inputs_have_ended and not hang

    def _deliver(self) -> None:
        now = time.monotonic()
        if now >= self._deadline or not (self._more_may_come or held_messages(self._slab)):
            self._stop()
            return
        took = time.monotonic() - now
        self.due = min(self._deadline, now + max(LOOK_EVERY_S, LOOK_SHARE * took))

    def _stop(self) -> None:
        self._crew.stop()
        self.due = time.monotonic()
        self.phase = Phase.STOPPING

    def _wait_for_all(self) -> None:
        self.due = None
        if self._crew.is_gone:
            self.phase = Phase.OVER
