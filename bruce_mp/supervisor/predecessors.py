"""The processes of the code that we replaced: our children, of whom we know no more than number and control pipe.

They end when their pipe is closed, or by force.  The inputs are the last of those that work on messages: what comes
waits from their end on, and no longer than it must.  Status is the very last, because it hears the others' last words.
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

    from bruce_mp.supervisor.handover import Member

__all__ = ["Predecessors"]

PATIENCE_S: Final = 2.0
_INPUT: Final = "input"
_STATUS: Final = "status"


class Predecessors:
    """The old crew, and the helpers that the interpreter had started for itself."""

    def __init__(self, crew: Sequence[Member]) -> None:
        self._crew = crew
        self._helpers = _children() - {member.pid for member in crew}

    def end_senders(self) -> None:
        """Let router and dispatchers end; what they hold is in the slab."""
        _end([member for member in self._crew if not member.name.startswith((_INPUT, _STATUS))])

    def end_inputs(self) -> None:
        """Let the inputs end; what comes from now on waits."""
        _end([member for member in self._crew if member.name.startswith(_INPUT)])

    def end_status(self) -> None:
        """Let the status process end."""
        _end([member for member in self._crew if member.name == _STATUS])

    def bury_helpers(self) -> None:
        """Take note of the end of those that have ended, so that they do not stay as zombies."""
        self._helpers = {pid for pid in self._helpers if not _is_buried(pid)}


def _end(members: Sequence[Member]) -> None:
    for member in members:
        if member.control is not None:
            os.close(member.control)
    deadline = time.monotonic() + PATIENCE_S
    for member in members:
        _await(member.pid, deadline)


def _await(pid: int, deadline: float) -> None:
    """Wait for the end of a child, and end it by force if it comes too late."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


def _is_buried(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _children() -> set[int]:
    """Our children, as the kernel knows them."""
    task = Path("/proc/self/task") / str(os.getpid()) / "children"
    try:
        return set(map(int, task.read_text("ascii").split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: zombies stay, which harm nobody
        return set()
