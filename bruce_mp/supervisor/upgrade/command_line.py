"""Command line that starts the installed code as this daemon was started.

A script, such as the `bruce` of a virtual environment, names its Python in its first line. If a symbolic link in its
path now leads to the script of another environment, `sys.executable` is still the Python of the old environment. So the
command line begins with the script, and the kernel reads the first line again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["command_line"]


def command_line() -> list[str]:
    """Return the command line; its first word is a path with a directory, because `execve` searches no PATH."""
    program, *arguments = sys.orig_argv[1:]
    if _is_script(Path(program)):
        return [os.path.abspath(program), *arguments]  # noqa: PTH100 - keeps the link
    return [sys.executable, program, *arguments]


def _is_script(path: Path) -> bool:
    """Return True if the kernel can execute this file by its first line."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!" and os.access(path, os.X_OK)
    except OSError:
        return False
