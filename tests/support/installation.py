"""A copy of the package, which a test changes while a daemon runs from it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import bruce_mp

__all__ = ["PACKAGE", "Installation"]

PACKAGE: Final = Path(bruce_mp.__file__).parent


class Installation:
    """A directory with the package, which is reinstalled while a daemon runs from it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.package = directory / "bruce_mp"
        ignored = shutil.ignore_patterns("*.c", "spark", "devbroker")
        # Compiled files stay valid, because the copies keep their times, and spare seconds at each start.
        shutil.copytree(PACKAGE, self.package, ignore=ignored)
        (self.package / "devbroker").symlink_to(PACKAGE / "devbroker")

    def set_version(self, version: str) -> None:
        """Install another version with the same code."""
        self._edit("__init__.py", r'"\d+\.\d+\.\d+"', f'"{version}"')

    def set_layout(self, version: int) -> None:
        """Install another layout of the slab."""
        self._edit("slab/layout.py", r"(?m)^LAYOUT_VERSION.*$", f"LAYOUT_VERSION = {version}")

    def break_execution(self) -> None:
        """Install a supervisor that cannot execute other code, as if the code disappeared after its check."""
        self._edit("supervisor/upgrade/handover.py", r"execve\(command\[0\]", 'execve("/nowhere/bruce"')

    def rewrite_journals(self) -> None:
        """Install a journal process that writes a new file at each interval."""
        self._edit("journal/recorder.py", r"(?m)^_MAX_GARBAGE.*$", "_MAX_GARBAGE = -(1 << 60)")

    def break_module(self, name: str) -> None:
        """Make a module fail at import."""
        (self.package / name).write_text("raise ImportError('half installed')\n")

    def _edit(self, name: str, what: str, by: str) -> None:
        file = self.package / name
        text, changed = re.subn(what, by, file.read_text())
        assert changed
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").replace(file)
