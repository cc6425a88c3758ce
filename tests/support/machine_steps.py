"""Run an action one machine instruction at a time, and inspect shared memory after each.

The action runs in a fork of this process, stepped with ptrace(2). Its stores in memory that is mapped from a file are
visible here at once; all its other effects are lost.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_in_steps"]

TRACEME: Final = 0
CONTINUE: Final = 7
SINGLESTEP: Final = 9
AFTER_STEP: Final = signal.SIGTRAP << 8 | 0x7F
"""The status of a process that has stopped after a step, see `WIFSTOPPED` in waitpid(2)."""


def run_in_steps(action: Callable[[], object], on_step: Callable[[], None]) -> int:
    """Run `action` in a fork, call `on_step` after each instruction, and return the number of instructions.

    Raises OSError if the kernel does not allow it, and RuntimeError if the action failed.
    """
    pid = os.fork()
    if not pid:
        _run_between_stops(action)
    try:
        steps, status = _step_through(pid, on_step)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    if status:
        raise RuntimeError(f"The action ended with {os.waitstatus_to_exitcode(status)}.")
    return steps


def _run_between_stops(action: Callable[[], object]) -> NoReturn:
    """Run the action in the fork, which stops before and after it."""
    with suppress(BaseException):
        gc.disable()
        _ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        action()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os._exit(1)


def _step_through(pid: int, on_step: Callable[[], None]) -> tuple[int, int]:
    """Return the number of steps between the two stops, and the fork's exit status."""
    os.waitpid(pid, 0)
    steps, status = 0, AFTER_STEP
    while status == AFTER_STEP:
        _ptrace(SINGLESTEP, pid)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return steps, status
        steps += 1
        on_step()
    _ptrace(CONTINUE, pid)
    return steps, os.waitpid(pid, 0)[1]


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int) -> None:
    if _LIBC.ptrace(request, pid, None, None) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")
