"""Preflight check of the installed code, in a separate process, before an upgrade.

The process has the command line of that code plus `--check`. It reads the configuration, imports all programs, and
writes a report to standard output.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import time
from typing import IO, TYPE_CHECKING, Final

import msgspec

from bruce_mp import __version__
from bruce_mp.errors import BruceError
from bruce_mp.slab.layout import LAYOUT_VERSION
from bruce_mp.supervisor.upgrade.handover import command_line

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.processes.programs import Programs

__all__ = ["CHECK_OPTION", "Preflight", "PreflightError", "PreflightReport", "load_and_report"]

CHECK_OPTION: Final = "--check"
TIMEOUT_S: Final = 60.0
"""Time limit for the new code to load, also from a cold disk."""
_MAX_ERROR_CHARACTERS: Final = 2000
"""Characters of the process's error output in the log, from the end, where the error is."""


class PreflightError(BruceError):
    """The new code would not start."""


class PreflightReport(msgspec.Struct, frozen=True):
    """Report of the installed code: its version, its slab's layout version, the slab and run directory it would use."""

    version: str
    layout: int
    slab: str
    run_dir: str


def load_and_report(config: Config, programs: Programs) -> PreflightReport:
    """Import all programs, and return the report. Errors of the imports propagate."""
    for program in programs:
        importlib.import_module(program)
    return PreflightReport(__version__, LAYOUT_VERSION, config.slab_path, config.daemon.run_dir)


class Preflight:
    """The process that checks the installed code. `due` is its deadline on the monotonic clock."""

    def __init__(self) -> None:
        # files in memory: a pipe that nothing reads until the end would block the process once it is full
        self._stdout = open(os.memfd_create("stdout"), "w+b")  # noqa: PTH123, SIM115 - no path; `close` closes it
        self._stderr = open(os.memfd_create("stderr"), "w+b")  # noqa: PTH123, SIM115
        self._process = subprocess.Popen(  # noqa: S603 - starts the installed code of the running program
            [*command_line(), CHECK_OPTION], stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self.due = time.monotonic() + TIMEOUT_S

    def fileno(self) -> int:
        return self._pidfd

    @property
    def has_result(self) -> bool:
        """Return True if the process has ended or its deadline has passed."""
        return self._process.poll() is not None or time.monotonic() >= self.due

    def read_report(self) -> PreflightReport:
        """Return the report. Raise PreflightError if the code would not start, or if the check took too long."""
        if self._process.poll() is None:
            raise PreflightError(f"its check took longer than {TIMEOUT_S:g} s")
        if self._process.returncode:
            last_error = _read(self._stderr)[-_MAX_ERROR_CHARACTERS:]
            raise PreflightError(f"it would not start: {last_error or f'exit code {self._process.returncode}'}")
        try:
            return msgspec.json.decode(_read(self._stdout), type=PreflightReport)
        except msgspec.DecodeError as error:
            raise PreflightError("its report is not that of a bruce of this version") from error

    def close(self) -> None:
        """Kill the process if it runs, and release its resources."""
        self._process.kill()
        self._process.wait()
        os.close(self._pidfd)
        self._stdout.close()
        self._stderr.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()
