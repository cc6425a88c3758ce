"""Preflight check of the installed code, in a separate process, before an upgrade.

The process starts the installed code as this daemon was started, with the option `--check` added. It reads the
configuration, imports the programs of all processes, and writes a report to standard output.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from bruce_mp import __version__
from bruce_mp.errors import BruceError, SlabError
from bruce_mp.slab.file import Slab, layout_version_of
from bruce_mp.slab.layout import LAYOUT_VERSION, READABLE_VERSIONS
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.supervisor.upgrade.handover import command_line

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.processes.programs import Programs

__all__ = ["CHECK_OPTION", "Preflight", "PreflightError", "PreflightReport", "load_and_report"]

CHECK_OPTION: Final = "--check"
TIMEOUT_S: Final = 60.0
"""Time limit of the check, long enough to read the code from a slow disk."""
_MAX_ERROR_CHARACTERS: Final = 2000
"""The log shows at most this many characters of the process's error output: the last ones, which name the error."""


class PreflightError(BruceError):
    """The new code would not start, or the check gave no result."""


class PreflightReport(msgspec.Struct, frozen=True):
    """Report of the installed code: its version, the layout version of its slab, and the paths that it would use."""

    version: str
    layout: int
    slab: str
    run_dir: str


def load_and_report(config: Config, programs: Programs) -> PreflightReport:
    """Import all programs, and return the report of this code. An error of an import is raised as it is.

    Raise SlabError if the new code could not find or read the spill files: it would end the old inputs, then itself.
    """
    for program in programs:
        importlib.import_module(program)
    _check_spill_files(config)
    present = layout_version_of(Path(config.slab_path))
    layout = present if present in READABLE_VERSIONS else LAYOUT_VERSION
    return PreflightReport(__version__, layout, config.slab_path, config.daemon.run_dir)


def _check_spill_files(config: Config) -> None:
    try:
        slab = Slab(Path(config.slab_path), private=True)
    except SlabError:
        return  # there is no slab, or none that this code would adopt
    SpillDirectory.for_slab(slab, config.spill_path).check(slab)


class Preflight:
    """The process that checks the installed code.

    `due` is the time at which the check fails if the process still runs, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        # Files in memory instead of pipes: nothing reads the output until the end, and a full pipe blocks its writer.
        self._stdout = open(os.memfd_create("stdout"), "w+b")  # noqa: PTH123, SIM115 - no path; `close` closes it
        self._stderr = open(os.memfd_create("stderr"), "w+b")  # noqa: PTH123, SIM115
        self._process = subprocess.Popen(  # noqa: S603 - starts the installed code of the running program
            [*command_line(), CHECK_OPTION], stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self.due = time.monotonic() + TIMEOUT_S

    def fileno(self) -> int:
        """Return a descriptor that is readable once the process has ended."""
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
            raise PreflightError("it wrote no report that this version can read") from error

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
