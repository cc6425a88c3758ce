"""Runs of `bruce check-config --connect` in this process, and their lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.commands import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["Outcome", "Site"]

LIBRARY_TEXT: Final = re.compile(r"Traceback|Errno|Exception|NoneType|object is not|[a-z]Error\b")
"""Text of Python or of a library, which an operator must not have to read."""


class Outcome:
    """The output of the command, and its exit status."""

    def __init__(self, status: int, output: str) -> None:
        self.status = status
        self.lines = [line for line in output.splitlines() if re.match(r"(ok|warning|failed) ", line)]
        assert not LIBRARY_TEXT.search(output), output

    def line(self, subject: str) -> str:
        """Return the only line with a subject, which begins behind the status word and its padding."""
        found = [line for line in self.lines if line[9:].startswith(subject)]
        assert len(found) == 1, self.lines
        return found[0]


class Site:
    """A configuration file, and the command."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys
        (directory / "run").mkdir()

    def write(self, server: str, text: str = "") -> Path:
        """Write a configuration with small needs; `text` has further sections."""
        path = self._directory / "bruce.toml"
        path.write_text(
            f'''[kafka]
bootstrap_servers = ["{server}"]
[slab]
path = "{self._directory}/slab"
size = "8m"
[daemon]
run_dir = "{self._directory}/run"
[input.unix_datagram]
path = "{self._directory}/in"
[delivery]
kafka_socket_timeout_s = 3
{text}
'''
        )
        return path

    def check(self, server: str, text: str = "") -> Outcome:
        status = main(["check-config", "--connect", str(self.write(server, text))])
        printed = self._capsys.readouterr()
        return Outcome(status, printed.out + printed.err)
