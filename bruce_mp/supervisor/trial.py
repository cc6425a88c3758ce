"""Whether the code that is installed now would start: it is asked, in a process of its own.

The process is started as we were, with `--check` behind: it reads the configuration, loads all programs, and says who
it is and where it would work.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Final

import msgspec

from bruce_mp import __version__
from bruce_mp.errors import BruceError
from bruce_mp.slab.layout import LAYOUT_VERSION

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.programs import Programs

__all__ = ["CHECK", "Trial", "TrialError", "Verdict", "examine"]

CHECK: Final = "--check"
PATIENCE_S: Final = 60.0
_SAID_MAX: Final = 2000


class TrialError(BruceError):
    """The new code would not start."""


class Verdict(msgspec.Struct, frozen=True):
    """What the code that is installed now says of itself: its version, and whether it can go on with our slab."""

    version: str
    layout: int
    slab: str
    run_dir: str


def examine(config: Config, programs: Programs) -> Verdict:
    """Of the code that runs: load everything that the daemon needs.  Raises what the loading raises."""
    for program in programs:
        importlib.import_module(program)
    return Verdict(__version__, LAYOUT_VERSION, config.slab_path, config.daemon.run_dir)


class Trial:
    """A process that examines the code that is installed now.  `due`: when it is given up, by the monotonic clock."""

    def __init__(self) -> None:
        self._said = open(os.memfd_create("said"), "w+b")  # noqa: PTH123, SIM115 - no path; `close` closes it
        self._complaints = open(os.memfd_create("complaints"), "w+b")  # noqa: PTH123, SIM115
        command = [sys.executable, *sys.orig_argv[1:], CHECK]
        self._process = subprocess.Popen(  # noqa: S603 - what runs now is asked
            command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._complaints
        )
        self._end = os.pidfd_open(self._process.pid)
        self.due = time.monotonic() + PATIENCE_S

    def fileno(self) -> int:
        """The descriptor that is readable when the process has ended."""
        return self._end

    @property
    def is_over(self) -> bool:
        """Whether there is a verdict, or none in time."""
        return self._process.poll() is not None or time.monotonic() >= self.due

    def verdict(self) -> Verdict:
        """What came of it; TrialError when the code would not start, or did not say in time."""
        if self._process.poll() is None:
            raise TrialError(f"it did not say within {PATIENCE_S:g} s whether it would start")
        if self._process.returncode:
            raise TrialError(
                f"it would not start: {_read(self._complaints) or f'exit code {self._process.returncode}'}"
            )
        try:
            return msgspec.json.decode(_read(self._said), type=Verdict)
        except msgspec.DecodeError as error:
            raise TrialError(f"it does not say what it is: {error}") from error

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        os.close(self._end)
        self._said.close()
        self._complaints.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()[-_SAID_MAX:]
