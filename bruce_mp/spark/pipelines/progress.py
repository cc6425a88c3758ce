"""Show the progress of a pipeline: one rewritten line on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Progress"]

_TERMINAL_INTERVAL_S = 0.5
_FILE_INTERVAL_S = 10.0


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
        """Show the final `text`."""
        self._write(text, end="\n")

    def _write(self, text: str, end: str) -> None:
        self._shown_at = time.monotonic()
        line = f"{self.label}: {text}"
        start = "\r" if self.out.isatty() else ""
        self.out.write(f"{start}{line.ljust(self._width) if start else line}{end}")
        self.out.flush()
        self._width = len(line) if end == "" else 0
