"""The first steps of a process of the daemon, and its last.

What it needs is loaded before it is told to begin: it may have a predecessor that has to end first.

It must not outlive the supervisor, who alone watches it: the kernel kills it when the supervisor dies.  Signals of the
terminal are the supervisor's business; a SIGTERM that a service manager sends to all of them is its business, too.

What it fails of it tells the log, and a note in the run directory that the supervisor quotes if it has to give up.
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
from bruce_mp.pipes.control import Begin, Control, Loaded
from bruce_mp.slab.file import Slab
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.pipes.start import Start

__all__ = ["Inherited", "note_of", "run_child"]

_PR_SET_PDEATHSIG: Final = 1
_NOT_OURS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Service managers send them to the whole group; the supervisor says what follows from them."""

log = logging.getLogger(__name__)


class Inherited:
    """A descriptor of which a process that is being spawned gets a copy, open as long as the process lives."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, copy: Any) -> None:
        self.descriptor = copy.detach()


def note_of(start: Start) -> Path:
    """Where a process leaves the reason of its failure."""
    return start.run_dir / f"{start.name}.failed"


def run_child(program: str, start: Start, connection: Connection, _locks: Sequence[Inherited]) -> None:
    """Run `program.main`.  Exits with the code of a BruceError, 70 for any other exception."""
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
        log.error("%s", error)  # noqa: TRY400 - we foresaw it: a traceback would only hide the sentence
        _fail(start, str(error), error.exit_code)
    except Exception as error:
        log.critical("An error that nobody foresaw; this is a bug.", exc_info=True)
        _fail(start, f"{type(error).__name__}: {error}", os.EX_SOFTWARE)


def _tie_to_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # it died before we asked
        os._exit(os.EX_SOFTWARE)


def _fail(start: Start, reason: str, code: int) -> None:
    note_of(start).write_text(reason, "utf-8", "backslashreplace")
    sys.exit(code)
