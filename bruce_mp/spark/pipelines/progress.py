"""Show the progress of a pipeline: rows, percentage, rate and time left.

On a terminal one line is rewritten; elsewhere a line is written every ten seconds at most.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Progress", "ProgressMeter"]

_TERMINAL_INTERVAL_S = 0.5
_FILE_INTERVAL_S = 10.0
_POLL_S = 0.5
_MINUTE_S = 60
_HOUR_S = 3600


@dataclass
class Progress:
    """A display of progress on `out`, limited to the rate that suits a terminal or a file."""

    label: str
    out: TextIO = field(default_factory=lambda: sys.stderr)
    _shown_at: float = -_FILE_INTERVAL_S
    _width: int = 0

    def show(self, text: str) -> None:
        """Show `text` unless another text was shown a moment ago."""
        pause = _TERMINAL_INTERVAL_S if self.out.isatty() else _FILE_INTERVAL_S
        if time.monotonic() - self._shown_at >= pause:
            self._write(text, end="" if self.out.isatty() else "\n")

    def finish(self, text: str) -> None:
        """Show the final `text`, or one that must not be missed."""
        self._write(text, end="\n")

    @contextmanager
    def repeat(self, text: Callable[[], str]) -> Iterator[None]:
        """Show the present result of `text` again and again while the block runs."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(_POLL_S):
                self.show(text())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _write(self, text: str, end: str) -> None:
        self._shown_at = time.monotonic()
        line = f"{self.label}: {text}"
        start = "\r" if self.out.isatty() else ""
        self.out.write(f"{start}{line.ljust(self._width) if start else line}{end}")
        self.out.flush()
        self._width = len(line) if end == "" else 0


class ProgressMeter:
    """Describes the rows of a run so far; `done_before` is the part of all work that earlier runs did, 0 to 1."""

    def __init__(self, unit: str, done_before: float = 0.0) -> None:
        self._unit = unit
        self._done_before = done_before
        self._began = time.monotonic()

    def text(self, rows: int, part: float | None) -> str:
        """Describe rows, percentage, rate and time left; `part` of all work is done, None if it is not known."""
        spent = max(time.monotonic() - self._began, 1e-3)
        words = [f"{rows:,} {self._unit}"]
        if part is not None:
            words.append(f"{min(part, 1):.0%}")
        words.append(f"{rows / spent:,.0f}/s")
        if part is not None and self._done_before < part < 1:
            words.append(f"{_duration(spent * (1 - part) / (part - self._done_before))} left")
        return ", ".join(words)

    def summary(self, rows: int) -> str:
        """Describe a finished run."""
        spent = max(time.monotonic() - self._began, 1e-3)
        return f"{rows:,} {self._unit}, {rows / spent:,.0f}/s, {_duration(spent)}"


def _duration(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {seconds % _MINUTE_S:.0f} s"
    return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"
