"""Takeover from the processes of the replaced code.

The new processes first load their programs. Then the old ones end, the supervisor recovers the slab, and the new ones
begin, inputs first. Messages wait in the sockets only between the end of the old inputs and the begin of the new ones.

The supervisor knows only the pids and control pipes of the old processes. They exit when it closes their pipes; after a
time limit, it kills them. The status process ends last, because it receives the others' last reports.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

import bruce_mp
from bruce_mp import __version__
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.supervisor.processes.process_group import HEAD_START_S
from bruce_mp.supervisor.slab.slab_setup import recover_after_upgrade
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote, UpgradeStage, read_note, write_note
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.spill import SpillDirectory
    from bruce_mp.supervisor.processes.process_group import ProcessGroup
    from bruce_mp.supervisor.upgrade.handover import Handover, PassedProcess

__all__ = ["Takeover"]

_LOADING_S: Final = 10.0
"""Time limit for the new processes to load. Then the old ones end anyway, and messages wait for the new ones."""
_EXIT_S: Final = 2.0
"""Time for an old process to send its last frames. More would keep clients waiting; a killed one loses no message."""

log = logging.getLogger(__name__)


class Takeover:
    """Takeover from the processes of the replaced code. Times are in seconds of the monotonic clock."""

    def __init__(self, handover: Handover, run_dir: Path) -> None:
        self._old_version = handover.version
        self._old_processes = handover.processes
        # The helper processes of `multiprocessing` that the old code started.
        self._helpers = _children() - {member.pid for member in handover.processes}
        self._run_dir = run_dir
        self._without_input_since = handover.since
        self._others_due = 0.0
        self._without_input_s: float | None = None
        self._is_reported = False

    def carry_out(self, group: ProcessGroup, slab: Slab, input_rows: tuple[int, ...], spills: SpillDirectory) -> None:
        """End the old processes, recover the slab, and start the new inputs. Raise SlabError for a damaged slab."""
        if not self._old_processes:
            return  # they ended before the `execve`, so this is an ordinary start
        group.load_programs(time.monotonic() + _LOADING_S)
        for _ in used_chunk_headers(slab):
            pass  # so the kernel maps the pages before the recovery, while the old inputs still receive
        inputs = [each for each in self._old_processes if each.name.startswith("input")]  # input, input-1, ...
        status = [each for each in self._old_processes if each.name == "status"]
        _end(
            [each for each in self._old_processes if each not in (*inputs, *status)]
        )  # their messages stay in the slab
        self._without_input_since = time.monotonic()
        _end(inputs)  # new messages then wait in the sockets
        recover_after_upgrade(slab, input_rows, spills)
        group.begin_inputs()
        _end(status)
        self._others_due = time.monotonic() + HEAD_START_S

    def step(self, group: ProcessGroup) -> None:
        """Start the other processes when the inputs work, and report once that the takeover is complete."""
        self._helpers = {pid for pid in self._helpers if not _try_reap(pid)}
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
        before, package = read_note(self._run_dir), str(Path(bruce_mp.__file__).parent)
        done = UpgradeNote(before.number if before else 1, UpgradeStage.DONE, self._old_version, __version__)
        write_note(self._run_dir, replace(done, waited_ms=waited_ms, package=package))


def _end(processes: Sequence[PassedProcess]) -> None:
    """Close the control pipes of old processes, wait for their exit, and reap them."""
    for member in processes:
        if member.control is not None:
            os.close(member.control)
    deadline = time.monotonic() + _EXIT_S
    for member in processes:
        _reap(member.pid, deadline)


def _reap(pid: int, deadline: float) -> None:
    """Wait for the exit of a child, or kill it at the deadline, and reap it."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


def _try_reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _children() -> set[int]:
    """Return the pids of our children from /proc."""
    task = Path("/proc/self/task") / str(os.getpid()) / "children"
    try:
        return set(map(int, task.read_text("ascii").split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: zombies stay, without harm
        return set()
