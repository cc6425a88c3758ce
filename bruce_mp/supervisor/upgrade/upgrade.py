"""Upgrade to the installed code without stopping the daemon.

    IDLE ──SIGUSR2──▶ CHECKING ──it would start, and can adopt our slab──▶ READY: execute it
                         │  └─────it would start, with other paths or layout──▶ DRAINING ──all have ended──▶ execute it
                         └────────it would not start──▶ IDLE

"It" is the installed code. It can adopt our slab if it would use the same paths and the same layout of the slab. The
daemon works as usual during the check. `step` never blocks.
"""

from __future__ import annotations

import logging
import time
from enum import Enum, auto, unique
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bruce_mp import __version__
from bruce_mp.supervisor.upgrade.preflight import Preflight, PreflightError, PreflightReport
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote, UpgradeStage, read_note, write_note
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bruce_mp.slab.file import Slab

__all__ = ["Upgrade", "UpgradeState"]

log = logging.getLogger(__name__)


@unique
class UpgradeState(Enum):
    IDLE = auto()
    CHECKING = auto()
    READY = auto()
    """The supervisor executes the new code now, while our processes continue to work."""
    DRAINING = auto()
    """The supervisor executes the new code after our processes have delivered all messages and ended."""


class Upgrade:
    """State machine of an upgrade. `run_dir` and `slab` are those that this daemon uses.

    `report` is the result of the last successful check, and `checked_at` the time when that check ended, in seconds of
    the monotonic clock.
    """

    def __init__(self, run_dir: Path, slab: Slab) -> None:
        self._run_dir = run_dir
        self._slab = slab
        self._preflight: Preflight | None = None
        self._note = UpgradeNote(0, UpgradeStage.DONE, __version__)
        self.state = UpgradeState.IDLE
        self.report: PreflightReport | None = None
        self.checked_at = 0.0

    @property
    def due(self) -> float | None:
        """Return the time limit of a running check, at which `step` must be called, or None."""
        return self._preflight.due if self._preflight else None

    def sources(self) -> dict[int, Callable[[], None]]:
        """Return the descriptor that reports the end of a running check, with its handler."""
        return {self._preflight.fileno(): self.step} if self._preflight else {}

    def request(self) -> None:
        """Begin an upgrade, unless one is in progress."""
        if self.state is not UpgradeState.IDLE:
            return
        log.log(NOTICE, "Upgrade requested: checking the installed code.")
        last_note = read_note(self._run_dir)
        self._note = UpgradeNote(last_note.number + 1 if last_note else 1, UpgradeStage.CHECKING, __version__)
        if not write_note(self._run_dir, self._note):
            return  # the new code could not write to the run directory either, and would end
        try:
            self._preflight = Preflight()
        except OSError as error:
            self.refuse(f"it cannot be started: {error.strerror}")
        else:
            self.state = UpgradeState.CHECKING

    def step(self) -> None:
        """Act on the result of the check, if it is known."""
        if self._preflight is None or not self._preflight.has_result:
            return
        try:
            self._act_on_report(self._preflight.read_report())
        except PreflightError as error:
            self.refuse(str(error))
        self._close_preflight()

    def _act_on_report(self, report: PreflightReport) -> None:
        layout = self._slab.layout_version if self._slab.is_at_path else None  # the new code cannot adopt a lost file
        ours = (str(self._run_dir), str(self._slab.path), layout)
        if (report.run_dir, report.slab, report.layout) == ours:
            self._advance(UpgradeState.READY, UpgradeStage.TAKING_OVER, report)
            log.log(NOTICE, "bruce %s hands over to %s.", __version__, report.version)
            return
        self._advance(UpgradeState.DRAINING, UpgradeStage.DRAINING, report)
        log.log(
            NOTICE,
            "bruce %s hands over to %s, with its slab at %s and layout %d, after a shutdown that delivers what it can.",
            __version__,
            report.version,
            report.slab,
            report.layout,
        )

    def _advance(self, state: UpgradeState, stage: UpgradeStage, report: PreflightReport) -> None:
        self.state, self.report, self.checked_at = state, report, time.monotonic()
        self._note = replace(self._note, stage=stage, new=report.version)
        write_note(self._run_dir, self._note)

    def refuse(self, reason: str) -> None:
        """Log and record the reason why there is no upgrade, and allow the next request."""
        log.error("No upgrade from bruce %s to the installed code: %s", __version__, reason)
        write_note(self._run_dir, replace(self._note, stage=UpgradeStage.REFUSED, reason=reason))
        self.state = UpgradeState.IDLE

    def cancel(self) -> None:
        """Cancel the upgrade because the daemon ends."""
        if self.state is not UpgradeState.IDLE:
            self.refuse("the daemon is shutting down")
            self._close_preflight()

    def _close_preflight(self) -> None:
        if self._preflight is not None:
            self._preflight.close()
            self._preflight = None
