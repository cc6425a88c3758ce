"""Processes that the old version started before the supervisor replaced itself by exec().

The supervisor knows only their pids and control pipes. They exit when it closes their pipes; after a time limit, it
kills them. The inputs end after router and dispatchers, so that messages wait in the sockets as briefly as possible.
The status process ends last, because it receives the others' last reports.
"""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.supervisor.upgrade.handover import PassedProcess

__all__ = ["ReplacedProcesses"]

TIMEOUT_S: Final = 2.0
"""Time for a process to send its last frames. More would keep clients waiting; a killed one loses no message."""
_INPUT: Final = "input"
_STATUS: Final = "status"


class ReplacedProcesses:
    """The old processes, and the helper processes of `multiprocessing` that the old code started."""

    def __init__(self, processes: Sequence[PassedProcess]) -> None:
        self._processes = processes
        self._helpers = _children() - {member.pid for member in processes}

    def end_others(self) -> None:
        """End all but the inputs and the status process. The messages of the ended processes stay in the slab."""
        _end_and_reap([member for member in self._processes if not member.name.startswith((_INPUT, _STATUS))])

    def end_inputs(self) -> None:
        """End the inputs. New messages then wait in the sockets."""
        _end_and_reap([member for member in self._processes if member.name.startswith(_INPUT)])

    def end_status(self) -> None:
        _end_and_reap([member for member in self._processes if member.name == _STATUS])

    def reap_helpers(self) -> None:
        """Reap helper processes that have ended."""
        self._helpers = {pid for pid in self._helpers if not _try_reap(pid)}


def _end_and_reap(members: Sequence[PassedProcess]) -> None:
    for member in members:
        if member.control is not None:
            os.close(member.control)
    deadline = time.monotonic() + TIMEOUT_S
    for member in members:
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
