"""Entry point of each process of the daemon: set-up before its program runs, and exit handling.

A process begins as a fork of the supervisor, which has already imported the program. The process closes descriptors and
removes handlers that it inherited but does not need. Then it sends the control message Loaded, and waits for Begin
before it runs the program: during an upgrade, the old process must end first.

A process that fails writes the reason to the log, and to a file in the run directory, from which the supervisor quotes
it in the log line about the exit.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Final

from setproctitle import setproctitle

from bruce_mp.errors import BruceError
from bruce_mp.ipc.control_messages import Begin, Control, Loaded
from bruce_mp.supervisor.signal_pipe import WATCHED_SIGNALS
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.logs import remove_handlers, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["failure_file", "load_program", "open_descriptors", "run_program"]

_PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger(__name__)


def failure_file(start: Start) -> Path:
    """Return the path of the file to which a process writes the reason of its failure."""
    return start.run_dir / f"{start.name}.failed"


def load_program(program: str) -> None:
    """Import a program in the supervisor, and ignore errors: the process imports the program again and reports them."""
    with suppress(Exception):
        importlib.import_module(program)


def open_descriptors() -> set[int]:
    """Return the open descriptors of this process, except those of its standard streams."""
    entries = list(Path("/proc/self/fd").iterdir())
    # One entry was the descriptor that listed the directory. That one is closed now, so its entry no longer exists.
    return {int(entry.name) for entry in entries if entry.is_symlink()} - {0, 1, 2}


def run_program(program: str, start: Start, slab: Slab, connection: Connection, unneeded: Iterable[int]) -> None:
    """Run the module `program` (see `programs.py`).

    Exit with the error's code if the module raises a BruceError, and with code 70 if it raises another exception.
    `slab` is the supervisor's mapping, so another file at the slab's path does not matter. `unneeded` are inherited
    descriptors, which the process closes.
    """
    _die_with_parent()
    _drop_inheritance(unneeded)
    setproctitle(f"bruce: {start.name} (loading)")
    if start.clock_offset_ms is not None:
        steady.offset_ms = start.clock_offset_ms
    try:
        set_up_logging(start.config.logging, start.name)
        module, control = importlib.import_module(program), Control(connection)
        if hasattr(module, "prepare"):
            module.prepare(slab)
        control.send(Loaded())
        if isinstance(control.receive(), Begin):
            setproctitle(f"bruce: {start.name}")
            module.main(start, slab, control)
    except BruceError as error:
        log.error("%s", error)
        _exit_with_reason(start, str(error), error.exit_code)
    except Exception:
        log.critical("Unexpected error; this is a bug.", exc_info=True)
        _exit_with_reason(start, "a bug; the log has its traceback", os.EX_SOFTWARE)


def _drop_inheritance(unneeded: Iterable[int]) -> None:
    """Drop the supervisor's signal handlers, log handlers and descriptors."""
    # Garbage of the supervisor may own descriptors that this function closes. A later collection of the garbage would
    # close new descriptors with the same numbers.
    gc.freeze()
    signal.set_wakeup_fd(-1)
    # A service manager or terminal sends these signals to all processes, but only the supervisor acts on them.
    for number in WATCHED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED_SIGNALS)
    remove_handlers()
    for descriptor in unneeded:
        with suppress(OSError):  # `remove_handlers` has already closed the descriptors of the log handlers
            os.close(descriptor)


def _die_with_parent() -> None:
    """Request a SIGKILL from the kernel at the death of the supervisor; exit if the supervisor is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # the parent died before the prctl call
        os._exit(os.EX_SOFTWARE)


def _exit_with_reason(start: Start, reason: str, code: int) -> None:
    failure_file(start).write_text(reason, "utf-8", "backslashreplace")
    sys.exit(code)
