"""Entry point of each process of the daemon: set-up before its program runs, and exit handling.

A process imports its program, sends Loaded, and waits for Begin before it runs the program, because during an upgrade
the process that it replaces must end first.

The kernel kills the process when the supervisor dies.

A process that fails writes the reason to the log and to a file in the run directory. The supervisor quotes the file
when it logs the exit.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import sys
from multiprocessing import parent_process, reduction
from typing import TYPE_CHECKING, Any, Final

from setproctitle import setproctitle

from bruce_mp.errors import BruceError
from bruce_mp.ipc.control_messages import Begin, Control, Loaded
from bruce_mp.slab.file import Slab
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.ipc.start import Start

__all__ = ["InheritedDescriptor", "failure_file", "run_program"]

_PR_SET_PDEATHSIG: Final = 1
_IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Service managers and terminals send these signals to the whole process group; only the supervisor handles them."""

log = logging.getLogger(__name__)


class InheritedDescriptor:
    """Descriptor of which each spawned process gets a copy. The copy stays open until the process exits."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, copy: Any) -> None:
        self.descriptor = copy.detach()


def failure_file(start: Start) -> Path:
    """Return the path of the file to which a process writes the reason of its failure."""
    return start.run_dir / f"{start.name}.failed"


def run_program(program: str, start: Start, connection: Connection, _locks: Sequence[InheritedDescriptor]) -> None:
    """Run the module `program` (see `programs.py`). Exit with the code of a BruceError, or 70 for any other exception.

    The arguments include the locks because a process that receives their descriptors holds them until it exits.
    """
    _die_with_parent()
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    setproctitle(f"bruce: {start.name} (loading)")
    if start.clock_offset_ms is not None:
        steady.offset_ms = start.clock_offset_ms
    try:
        set_up_logging(start.config.logging, start.name)
        module, slab, control = importlib.import_module(program), Slab(start.slab_path), Control(connection)
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
        _exit_with_reason(start, "a bug, whose traceback is in the log", os.EX_SOFTWARE)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # the parent died before the prctl call
        os._exit(os.EX_SOFTWARE)


def _exit_with_reason(start: Start, reason: str, code: int) -> None:
    failure_file(start).write_text(reason, "utf-8", "backslashreplace")
    sys.exit(code)
