"""Takeover from the processes of the replaced code.

The new processes first load their programs. Then the old ones end, the supervisor recovers the slab, and the new ones
begin, inputs first. Messages wait in the sockets only between the end of the old inputs and the begin of the new ones.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import bruce_mp
from bruce_mp import __version__
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.supervisor.processes.process_group import HEAD_START_S
from bruce_mp.supervisor.slab.slab_setup import recover_after_upgrade
from bruce_mp.supervisor.upgrade.replaced_processes import ReplacedProcesses
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote, UpgradeStage, read_note, write_note
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.spill import SpillDirectory
    from bruce_mp.supervisor.processes.process_group import ProcessGroup
    from bruce_mp.supervisor.upgrade.handover import Handover

__all__ = ["Takeover"]

_LOADING_S: Final = 10.0
"""Time limit for the new processes to load. Then the old ones end anyway, and messages wait for the new ones."""

log = logging.getLogger(__name__)


class Takeover:
    """Takeover from the processes of the replaced code. Times are in seconds of the monotonic clock."""

    def __init__(self, handover: Handover, run_dir: Path) -> None:
        self._old_version = handover.version
        self._replaced = ReplacedProcesses(handover.processes)
        self._has_old_processes = bool(handover.processes)
        self._run_dir = run_dir
        self._without_input_since = handover.since
        self._others_due = 0.0
        self._without_input_s: float | None = None
        self._is_reported = False

    def carry_out(self, group: ProcessGroup, slab: Slab, input_rows: tuple[int, ...], spills: SpillDirectory) -> None:
        """End the old processes, recover the slab, and start the new inputs. Raise SlabError for a damaged slab."""
        if not self._has_old_processes:
            return  # the old processes ended before the `execve`, so this is an ordinary start
        group.load_programs(time.monotonic() + _LOADING_S)
        for _ in used_chunk_headers(slab):
            pass  # so the kernel maps the pages before the recovery, while the old inputs still receive
        self._replaced.end_others()
        self._without_input_since = time.monotonic()
        self._replaced.end_inputs()
        recover_after_upgrade(slab, input_rows, spills)
        group.begin_inputs()
        self._replaced.end_status()
        self._others_due = time.monotonic() + HEAD_START_S

    def step(self, group: ProcessGroup) -> None:
        """Start the other processes when the inputs work, and report once that the takeover is complete."""
        self._replaced.reap_helpers()
        if group.inputs_have_booted or time.monotonic() >= self._others_due:
            group.begin_all()
        if self._without_input_s is None and group.inputs_have_booted:
            self._without_input_s = time.monotonic() - self._without_input_since
        if self._without_input_s is not None and group.is_complete and not self._is_reported:
            self._is_reported = True
            self._report(round(self._without_input_s * 1000))

    def _report(self, waited_ms: int) -> None:
        log.log(
            NOTICE,
            "bruce %s has taken over from %s. Nothing was received for %d ms; messages waited in the sockets.",
            __version__,
            self._old_version,
            waited_ms,
        )
        note = read_note(self._run_dir)
        number = note.number if note else 1
        package = str(Path(bruce_mp.__file__).parent)
        write_note(
            self._run_dir,
            UpgradeNote(
                number, UpgradeStage.DONE, self._old_version, __version__, waited_ms=waited_ms, package=package
            ),
        )
