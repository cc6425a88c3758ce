"""Shutdown of the daemon in phases: stop receiving, deliver the rest, stop the processes.

    RUNNING ──SIGTERM──▶ INTAKE ──inputs end or hang─▶ DELIVERY ──slab is empty──▶ STOPPING ──all have ended──▶ OVER
    RUNNING, INTAKE or DELIVERY ──the daemon cannot continue──▶ STOPPING
    DELIVERY ──the time limit of the shutdown has passed──▶ STOPPING

First the sockets refuse senders, while the inputs still receive the data that the kernel has queued. Sockets that stay
open after the daemon has ended (in a service manager, in `bruce hold` or for an upgrade) do not refuse senders: later
messages wait in these sockets for the next daemon. The supervisor counts the held messages in the slab instead of
asking the processes, which may die and restart during the shutdown. It does not wait for messages in spill files: only
an input could deliver them. It calls `Shutdown.step`, which never blocks, after every event and at the time in
`Shutdown.due`.
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.supervisor.slab.backlog import count_held_by_topic, has_deliverable
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.processes.process_group import ProcessGroup
    from bruce_mp.supervisor.sockets.input_sockets import InputSockets

__all__ = ["Shutdown", "ShutdownPhase"]

INPUT_TIMEOUT_S: Final = 2.0
"""Time limit for the inputs to receive the messages that wait in the sockets; it begins when all inputs run."""
COUNT_INTERVAL_S: Final = 0.05
"""Shortest interval between the starts of two counts of the held messages."""
COUNT_TIME_FACTOR: Final = 4
"""The interval is at least this many times the duration of a count, so counting takes at most a quarter of the time."""

log = logging.getLogger(__name__)


@unique
class ShutdownPhase(Enum):
    RUNNING = auto()
    INTAKE = auto()
    """The inputs receive the messages that wait in the sockets."""
    DELIVERY = auto()
    """The daemon delivers the messages that it holds."""
    STOPPING = auto()
    """The processes end."""
    OVER = auto()


class Shutdown:
    """State machine that shuts the process group down. Times are in seconds of the monotonic clock."""

    def __init__(self, group: ProcessGroup, slab: Slab, config: Config, input_sockets: InputSockets) -> None:
        self._group = group
        self._slab = slab
        self.apply_config(config)
        self._input_sockets = input_sockets
        self._deadline = 0.0
        self._input_deadline = 0.0
        self.phase = ShutdownPhase.RUNNING
        self.due: float | None = None

    def apply_config(self, config: Config) -> None:
        """Use the time limit of a reloaded configuration."""
        self._max_delay_s = config.delivery.shutdown_max_delay_ms / 1000

    def request(self, *, keeps_sockets: bool = False) -> None:
        """Begin the shutdown. A second request ends the wait for deliveries.

        If `keeps_sockets` is True, the sockets stay open after the shutdown, for the new code of an upgrade or in
        `bruce hold`.
        """
        now = time.monotonic()
        if self.phase is ShutdownPhase.RUNNING:
            log.log(NOTICE, "Shutting down; delivery of the remaining messages may take %g s.", self._max_delay_s)
            self._deadline = now + self._max_delay_s
            self._input_deadline = self._input_deadline_from(now)
            if not keeps_sockets:
                self._input_sockets.refuse_senders()
            stays_open = keeps_sockets or self._input_sockets.datagram_socket_stays_open
            self._group.drain_inputs(datagram_socket_stays_open=stays_open)
            self.phase = ShutdownPhase.INTAKE
        elif self.phase in {ShutdownPhase.INTAKE, ShutdownPhase.DELIVERY}:
            log.log(NOTICE, "Second shutdown request: the daemon stops waiting for deliveries.")
            self._deadline = now

    def step(self) -> None:
        """Enter the next phase if its condition is met."""
        if self._group.failure and self.phase in {ShutdownPhase.RUNNING, ShutdownPhase.INTAKE, ShutdownPhase.DELIVERY}:
            log.critical("%s.", self._group.failure)
            self._stop()
        match self.phase:
            case ShutdownPhase.INTAKE:
                self._wait_for_inputs()
            case ShutdownPhase.DELIVERY:
                self._wait_for_deliveries()
            case ShutdownPhase.STOPPING:
                self.due = None
                if self._group.has_ended:
                    self.phase = ShutdownPhase.OVER

    def _wait_for_inputs(self) -> None:
        if not self._group.inputs_have_booted:  # the time limit begins only when all inputs can receive
            self._input_deadline = self._input_deadline_from(time.monotonic())
        self.due = self._input_deadline
        if self._group.inputs_have_ended or self._input_timeout_is_over:
            self._group.drain_router_and_dispatchers()
            self.phase = ShutdownPhase.DELIVERY
            self._wait_for_deliveries()

    def _input_deadline_from(self, now: float) -> float:
        """Return the deadline of the inputs if their time limit begins at `now`."""
        return min(now + INPUT_TIMEOUT_S, self._deadline)

    @property
    def _input_timeout_is_over(self) -> bool:
        return time.monotonic() >= self._input_deadline

    @property
    def _inputs_may_add_messages(self) -> bool:
        """Return True if an input may still hand over messages.

        An input that has booted, but has not ended within the time limit, counts as hung: it is not waited for.
        """
        are_hung = self._group.inputs_have_booted and self._input_timeout_is_over
        return not self._group.inputs_have_ended and not are_hung

    def _wait_for_deliveries(self) -> None:
        now = time.monotonic()
        if now >= self._deadline or not self._may_deliver_more():
            self._stop()
            return
        counting_s = time.monotonic() - now
        self.due = min(self._deadline, now + max(COUNT_INTERVAL_S, COUNT_TIME_FACTOR * counting_s))

    def _may_deliver_more(self) -> bool:
        return self._inputs_may_add_messages or has_deliverable(count_held_by_topic(self._slab))

    def _stop(self) -> None:
        self._group.stop()
        self.due = time.monotonic()
        self.phase = ShutdownPhase.STOPPING
