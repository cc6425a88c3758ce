"""Entry point of each process of the daemon: set-up before its program runs, and exit handling.

A process imports its program before it sends Loaded, and runs it only after Begin, because a predecessor may have to
end first.

It must not outlive the supervisor, which alone restarts it: the kernel kills it when the supervisor dies. It ignores
signals of the terminal and of a service manager; the supervisor handles them for all processes.

On failure it writes the reason to the log and to a note in the run directory, which the supervisor quotes if it gives
up.
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

__all__ = ["Inherited", "note_of", "run_child"]

_PR_SET_PDEATHSIG: Final = 1
_NOT_OURS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Service managers send these signals to the whole process group; only the supervisor handles them."""

log = logging.getLogger(__name__)


class Inherited:
    """Descriptor that a spawned process inherits as a copy. The copy stays open for the life of the process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, copy: Any) -> None:
        self.descriptor = copy.detach()


def note_of(start: Start) -> Path:
    """Return the file in which a process leaves the reason of its failure."""
    return start.run_dir / f"{start.name}.failed"


def run_child(program: str, start: Start, connection: Connection, _locks: Sequence[Inherited]) -> None:
    """Run `program.main`. Exit with the code of a BruceError, or 70 for any other exception."""
    _tie_to_parent()
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    setproctitle(f"bruce: {start.name} to be")
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
        log.error("%s", error)  # noqa: TRY400 - a traceback would hide the sentence of an expected error
        _fail(start, str(error), error.exit_code)
    except Exception as error:
        log.critical("Unexpected error; this is a bug.", exc_info=True)
        _fail(start, f"{type(error).__name__}: {error}", os.EX_SOFTWARE)


def _tie_to_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # the parent died before the prctl call
        os._exit(os.EX_SOFTWARE)


def _fail(start: Start, reason: str, code: int) -> None:
    note_of(start).write_text(reason, "utf-8", "backslashreplace")
    sys.exit(code)
