"""Takeover from the processes of the replaced code.

The new processes first load their programs, and wait. Then the old processes end, the supervisor recovers the slab, and
the new processes begin their work, inputs first. Messages wait in the sockets only from the end of the old inputs until
the new inputs begin.

Of the old processes, the supervisor has only the pids and the control pipes. An old process exits when the supervisor
closes its pipe; after a time limit, the supervisor kills it. The old status process ends last, because it receives the
last reports of the other old processes.
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

_LOADING_TIMEOUT_S: Final = 10.0
"""Time limit for the new processes to load. Then the supervisor ends the old processes anyway, and messages wait in the
sockets until the new processes have loaded."""
_EXIT_TIMEOUT_S: Final = 2.0
"""Time limit for an old process to send its last reports and exit; then it is killed, which loses no messages."""

log = logging.getLogger(__name__)


class Takeover:
    """Takeover from the processes of the replaced code. Times are in seconds of the monotonic clock."""

    def __init__(self, handover: Handover, run_dir: Path) -> None:
        self._old_version = handover.version
        self._old_processes = handover.processes
        # All other children are helper processes of `multiprocessing` that the old code started.
        self._helpers = _children() - {process.pid for process in handover.processes}
        self._run_dir = run_dir
        self._without_input_since = handover.checked_at
        self._begin_all_due = 0.0
        """The time when the other processes begin even if the inputs have not booted yet."""
        self._without_input_s: float | None = None
        """The time for which no input ran; None until the new inputs have booted."""
        self._is_reported = False

    def carry_out(self, group: ProcessGroup, slab: Slab, input_rows: tuple[int, ...], spills: SpillDirectory) -> None:
        """End the old processes, recover the slab, and let the new inputs begin. Raise SlabError for a damaged slab.

        Do nothing if the old processes ended before the `execve`: the new ones then start as without an upgrade.
        """
        if not self._old_processes:
            return
        group.load_programs(time.monotonic() + _LOADING_TIMEOUT_S)
        # Read all headers once, so that the kernel maps their pages while the old inputs still receive. The recovery
        # below reads them again, and is faster then.
        for _ in used_chunk_headers(slab):
            pass
        old_inputs = [each for each in self._old_processes if each.name.startswith("input")]  # input, input-1, ...
        old_status = [each for each in self._old_processes if each.name == "status"]
        old_others = [each for each in self._old_processes if each not in (*old_inputs, *old_status)]
        _end_processes(old_others)  # the messages that they were delivering stay in the slab
        self._without_input_since = time.monotonic()
        _end_processes(old_inputs)  # new messages now wait in the sockets
        recover_after_upgrade(slab, input_rows, spills)
        group.begin_inputs()
        _end_processes(old_status)
        self._begin_all_due = time.monotonic() + HEAD_START_S

    def step(self, group: ProcessGroup) -> None:
        """Let the other processes begin once the inputs have booted, and report once that the takeover is complete."""
        self._helpers = {pid for pid in self._helpers if not _try_reap(pid)}
        if group.inputs_have_booted or time.monotonic() >= self._begin_all_due:
            group.begin_all()
        if self._without_input_s is None and group.inputs_have_booted:
            self._without_input_s = time.monotonic() - self._without_input_since
        if self._without_input_s is not None and group.is_complete and not self._is_reported:
            self._is_reported = True
            self._report(round(self._without_input_s * 1000))

    def _report(self, without_input_ms: int) -> None:
        log.log(
            NOTICE,
            "bruce %s has taken over from %s. Nothing was received for %d ms; messages waited in the sockets.",
            __version__,
            self._old_version,
            without_input_ms,
        )
        last_note, package = read_note(self._run_dir), str(Path(bruce_mp.__file__).parent)
        done = UpgradeNote(last_note.number if last_note else 1, UpgradeStage.DONE, self._old_version, __version__)
        write_note(self._run_dir, replace(done, waited_ms=without_input_ms, package=package))


def _end_processes(processes: Sequence[PassedProcess]) -> None:
    """Close the control pipes of old processes, wait for their exit, and reap them."""
    for process in processes:
        if process.control is not None:
            os.close(process.control)
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    for process in processes:
        _reap(process.pid, deadline)


def _reap(pid: int, deadline: float) -> None:
    """Wait for the exit of a child process, kill it if it still runs at the deadline, and reap it."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


def _try_reap(pid: int) -> bool:
    """Reap a child process if it has ended. Return False if it still runs."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _children() -> set[int]:
    """Return the pids of this process's children, from /proc."""
    children_file = Path("/proc/self/task") / str(os.getpid()) / "children"
    try:
        return set(map(int, children_file.read_text("ascii").split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: helpers that have ended stay as zombies, without harm
        return set()
