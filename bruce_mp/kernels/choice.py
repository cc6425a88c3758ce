"""Which kernels there are to use: the compiled ones, or, where there are none, the pure ones.

They are not used when one of them is older than its source: that is a checkout whose kernels were not built again.
BRUCE_KERNELS=pure in the environment chooses the pure ones; BRUCE_KERNELS=compiled makes it an error not to have the
compiled ones.
"""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final, NamedTuple

from bruce_mp.errors import StartError

__all__ = ["CHOICE", "COMPILED", "Choice"]

COMPILED: Final = ("encode", "lanes", "look", "message_set", "receive", "rows", "segments")
"""The modules of `bruce_mp.kernels.compiled`."""
_VARIABLE: Final = "BRUCE_KERNELS"
_COST: Final = "a message costs several times as much CPU"


class Choice(NamedTuple):
    """Whether the compiled kernels are used, and a sentence about it."""

    compiled: bool
    sentence: str


def _find_fault(directory: Path) -> str | None:
    """Why the compiled kernels cannot be used; None if they can."""
    headers = [path.stat().st_mtime for path in directory.glob("*.pxd")]
    for name in COMPILED:
        built = next((path for suffix in EXTENSION_SUFFIXES if (path := directory / (name + suffix)).exists()), None)
        if built is None:
            return "were not built: install the package where there is a C compiler, or a wheel"
        source = directory / f"{name}.pyx"
        if source.exists() and built.stat().st_mtime < max(source.stat().st_mtime, *headers):
            return f"are older than their source ({source.name}): run scripts/build-kernels"
    return None


def _choose(wish: str) -> Choice:
    if wish == "pure":
        return Choice(compiled=False, sentence=f"pure Python kernels, because {_VARIABLE} says so: {_COST}")
    fault = _find_fault(Path(__file__).with_name("compiled"))
    if fault is None:
        return Choice(compiled=True, sentence="compiled kernels")
    if wish == "compiled":
        raise StartError(f"{_VARIABLE} asks for the compiled kernels, which {fault}.")
    return Choice(compiled=False, sentence=f"pure Python kernels: {_COST}; the compiled ones {fault}")


CHOICE: Final = _choose(os.environ.get(_VARIABLE, ""))
