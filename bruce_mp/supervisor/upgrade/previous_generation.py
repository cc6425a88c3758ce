"""Processes of the replaced code: children of which only pid and control pipe are known.

They end when the supervisor closes their pipe, or are killed. The inputs end last of the message path, because messages
wait in the sockets from then on. Status ends after all others, because it receives their last reports.
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

    from bruce_mp.supervisor.upgrade.handover import Member

__all__ = ["PreviousGeneration"]

PATIENCE_S: Final = 2.0
_INPUT: Final = "input"
_STATUS: Final = "status"


class PreviousGeneration:
    """The old processes, and the helper processes of the interpreter."""

    def __init__(self, crew: Sequence[Member]) -> None:
        self._crew = crew
        self._helpers = _children() - {member.pid for member in crew}

    def end_senders(self) -> None:
        """End router and dispatchers. The slab keeps their messages."""
        _end([member for member in self._crew if not member.name.startswith((_INPUT, _STATUS))])

    def end_inputs(self) -> None:
        """End the inputs. New messages then wait in the sockets."""
        _end([member for member in self._crew if member.name.startswith(_INPUT)])

    def end_status(self) -> None:
        _end([member for member in self._crew if member.name == _STATUS])

    def reap_helpers(self) -> None:
        """Reap helper processes that have ended."""
        self._helpers = {pid for pid in self._helpers if not _is_buried(pid)}


def _end(members: Sequence[Member]) -> None:
    for member in members:
        if member.control is not None:
            os.close(member.control)
    deadline = time.monotonic() + PATIENCE_S
    for member in members:
        _await(member.pid, deadline)


def _await(pid: int, deadline: float) -> None:
    """Wait for the end of a child, and kill it at the deadline."""
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
    """Return the pids of our children from /proc."""
    task = Path("/proc/self/task") / str(os.getpid()) / "children"
    try:
        return set(map(int, task.read_text("ascii").split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: zombies stay, without harm
        return set()
