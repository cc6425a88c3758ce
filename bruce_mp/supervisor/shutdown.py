"""Shutdown of the daemon in phases: stop receiving, deliver the rest, stop the processes.

    RUNNING ──SIGTERM──▶ INTAKE ──inputs have ended──▶ DELIVERY ──slab is empty──▶ STOPPING ──all have ended──▶ OVER
       └──────────── the daemon cannot continue, or the time limit passed ────────────▲

First the datagram socket refuses new messages; the input still receives those in the kernel. A service manager's socket
keeps accepting messages, which wait for the next daemon. The supervisor counts undelivered messages in the slab instead
of asking the processes, which may die and restart during the shutdown. `step` runs after every event and at the time
`due`; it never waits.
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.supervisor.slab.backlog import deliverable, held_messages
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.processes.process_group import ProcessGroup
    from bruce_mp.supervisor.sockets.input_sockets import InputSockets

__all__ = ["Phase", "Shutdown"]

INTAKE_PATIENCE_S: Final = 2.0
LOOK_EVERY_S: Final = 0.05
LOOK_SHARE: Final = 4
"""Divisor for the share of time spent on counts, because a large slab takes long to count."""

log = logging.getLogger(__name__)


@unique
class Phase(Enum):
    RUNNING = auto()
    INTAKE = auto()
    DELIVERY = auto()
    STOPPING = auto()
    OVER = auto()


class Shutdown:
    """State machine that shuts the process group down."""

    def __init__(self, group: ProcessGroup, slab: Slab, max_delay_s: float, intake: InputSockets) -> None:
        self._group = group
        self._slab = slab
        self.max_delay_s = max_delay_s
        self._intake = intake
        self._deadline = 0.0
        self._intake_until = 0.0
        self.phase = Phase.RUNNING
        self.due: float | None = None

    def request(self, *, keeps_sockets: bool = False) -> None:
        """Begin the shutdown, or stop waiting for deliveries at a second request.

        With `keeps_sockets`, new code continues to receive on the sockets.
        """
        now = time.monotonic()
        if self.phase is Phase.RUNNING:
            log.log(NOTICE, "Shutting down; delivery of the remaining messages may take %g s.", self.max_delay_s)
            self._deadline = now + self.max_delay_s
            self._intake_until = min(now + INTAKE_PATIENCE_S, self._deadline)
            if not keeps_sockets:
                self._intake.close()
            self._group.drain_inputs(stays_open=keeps_sockets or self._intake.stays_open)
            self.phase = Phase.INTAKE
        elif self.phase in {Phase.INTAKE, Phase.DELIVERY}:
            log.log(NOTICE, "Asked again to shut down: no longer waiting for deliveries.")
            self._deadline = now

    def step(self) -> None:
        """Do the work of the current phase."""
        if self._group.failure and self.phase in {Phase.RUNNING, Phase.INTAKE, Phase.DELIVERY}:
            log.critical("%s.", self._group.failure)
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
        if self._group.inputs_have_ended or self._is_late:
            self._group.drain_others()
            self.phase = Phase.DELIVERY
            self._deliver()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._intake_until

    @property
    def _more_may_come(self) -> bool:
        """Return True if an input may still hand over messages.

        A running input past its time limit is hung and does not count.
        """
        hang = self._group.inputs_run and self._is_late
        return not self._group.inputs_have_ended and not hang

    def _deliver(self) -> None:
        now = time.monotonic()
        if now >= self._deadline or not (self._more_may_come or deliverable(held_messages(self._slab))):
            self._stop()
            return
        took = time.monotonic() - now
        self.due = min(self._deadline, now + max(LOOK_EVERY_S, LOOK_SHARE * took))

    def _stop(self) -> None:
        self._group.stop()
        self.due = time.monotonic()
        self.phase = Phase.STOPPING

    def _wait_for_all(self) -> None:
        self.due = None
        if self._group.is_gone:
            self.phase = Phase.OVER
