"""Takeover from the processes of the old code.

The new processes start first and load their programs. Then the old ones end, the slab is recovered, and the new ones
begin, inputs first. Messages wait in the sockets only between the end of the old inputs and the start of the new ones.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from bruce_mp import __version__
from bruce_mp.slab.chunks import used_heads
from bruce_mp.supervisor.processes.process_group import HEAD_START_S
from bruce_mp.supervisor.slab.slab_setup import inherit_slab
from bruce_mp.supervisor.upgrade.previous_generation import PreviousGeneration
from bruce_mp.supervisor.upgrade.upgrade_note import Stage, UpgradeNote, read_note, write_note
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.spill import SpillDirectory
    from bruce_mp.supervisor.processes.process_group import ProcessGroup
    from bruce_mp.supervisor.upgrade.handover import Handover

__all__ = ["Takeover"]

_LOADING_S: Final = 10.0
"""Time limit for our processes to load; later ones load while messages wait."""

log = logging.getLogger(__name__)


class Takeover:
    """Takeover from the old processes (`before`) to `crew`. Times are in seconds of the monotonic clock."""

    def __init__(self, handover: Handover, run_dir: Path) -> None:
        self._old_version = handover.version
        self._before = PreviousGeneration(handover.crew)
        self._has_slab = bool(handover.crew)
        self._run_dir = run_dir
        self._deaf_since = handover.since
        self._others_begin = 0.0
        self._waited: float | None = None
        self._is_told = False

    def carry_out(self, crew: ProcessGroup, slab: Slab, inputs: tuple[int, ...], spills: SpillDirectory) -> None:
        """End the old processes and let ours begin. Raise SlabError for a damaged slab."""
        if not self._has_slab:
            return  # the old daemon has ended, and this is an ordinary start
        crew.load(time.monotonic() + _LOADING_S)
        for _ in used_heads(slab):  # touches the pages that are walked below, so that the kernel has mapped them
            pass
        self._before.end_senders()
        self._deaf_since = time.monotonic()
        self._before.end_inputs()
        inherit_slab(slab, inputs, spills)
        crew.start_inputs()
        self._before.end_status()
        self._others_begin = time.monotonic() + HEAD_START_S

    def report_when_done(self, crew: ProcessGroup) -> None:
        """Let the other processes begin, and report once that the takeover is complete."""
        self._before.reap_helpers()
        if crew.inputs_run or time.monotonic() >= self._others_begin:
            crew.start_all()
        if self._waited is None and crew.inputs_run:
            self._waited = time.monotonic() - self._deaf_since
        if self._waited is not None and crew.is_complete and not self._is_told:
            self._is_told = True
            self._tell(round(self._waited * 1000))

    def _tell(self, waited_ms: int) -> None:
        log.log(
            NOTICE,
            "bruce %s has taken over from %s. Nothing was received for %d ms; messages waited in the sockets.",
            __version__,
            self._old_version,
            waited_ms,
        )
        note = read_note(self._run_dir)
        number = note.number if note else 1
        write_note(self._run_dir, UpgradeNote(number, Stage.DONE, self._old_version, __version__, waited_ms=waited_ms))
