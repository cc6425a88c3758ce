"""Show the progress of a pipeline: rows, percentage, rate and time left.

On a terminal, one line is rewritten. In a file, `show` adds a line only if the last line is at least ten seconds old.
"""

from __future__ import annotations

import math
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
_REPEAT_INTERVAL_S = 0.5
_MIN_SPENT_S = 1e-3
"""The least time in the computation of a rate, which excludes a division by zero."""
_MINUTE_S = 60
_HOUR_S = 3600


@dataclass
class Progress:
    """A display of progress on `out`, which is a terminal or a file."""

    label: str
    out: TextIO = field(default_factory=lambda: sys.stderr)
    _shown_s: float = -math.inf
    _width: int = 0

    def show(self, text: str) -> None:
        """Show `text`, unless another text was shown a moment ago."""
        interval_s = _TERMINAL_INTERVAL_S if self.out.isatty() else _FILE_INTERVAL_S
        if time.monotonic() - self._shown_s >= interval_s:
            self._write(text, end="" if self.out.isatty() else "\n")

    def show_line(self, text: str) -> None:
        """Show `text` in any case, and end the line."""
        self._write(text, end="\n")

    @contextmanager
    def repeat(self, describe: Callable[[], str]) -> Iterator[None]:
        """Show the current result of `describe` at intervals while the block runs."""
        done = threading.Event()

        def show_repeatedly() -> None:
            while not done.wait(_REPEAT_INTERVAL_S):
                self.show(describe())

        thread = threading.Thread(target=show_repeatedly, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _write(self, text: str, end: str) -> None:
        self._shown_s = time.monotonic()
        line = f"{self.label}: {text}"
        # Spaces overwrite the rest of a longer line before.
        self.out.write(f"\r{line.ljust(self._width)}{end}" if self.out.isatty() else f"{line}{end}")
        self.out.flush()
        self._width = len(line) if end == "" else 0


class ProgressMeter:
    """The time since the start of a pipeline, and texts about its rate and its time left.

    `unit` names the counted things, such as "messages". `done_before` is the fraction of all work, 0 to 1, that earlier
    starts of the pipeline have done.
    """

    def __init__(self, unit: str, done_before: float = 0.0) -> None:
        self._unit = unit
        self._done_before = done_before
        self._started_s = time.monotonic()

    def describe(self, row_count: int, done_fraction: float | None) -> str:
        """Describe the rows of this start, and the percentage, rate and time left.

        `done_fraction` is the fraction of all work, 0 to 1, that this and earlier starts have done; None if unknown.
        """
        spent_s = self._spent_s()
        parts = [f"{row_count:,} {self._unit}"]
        if done_fraction is not None:
            parts.append(f"{min(done_fraction, 1):.0%}")
        parts.append(f"{row_count / spent_s:,.0f}/s")
        if done_fraction is not None and self._done_before < done_fraction < 1:
            left_s = spent_s * (1 - done_fraction) / (done_fraction - self._done_before)
            parts.append(f"{_format_duration(left_s)} left")
        return ", ".join(parts)

    def summarize(self, row_count: int) -> str:
        """Describe the finished work: number of rows, rate and duration."""
        spent_s = self._spent_s()
        return f"{row_count:,} {self._unit}, {row_count / spent_s:,.0f}/s, {_format_duration(spent_s)}"

    def _spent_s(self) -> float:
        return max(time.monotonic() - self._started_s, _MIN_SPENT_S)


def _format_duration(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {seconds % _MINUTE_S:.0f} s"
    return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"
