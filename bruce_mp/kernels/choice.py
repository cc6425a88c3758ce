"""Which kernels there are to use: the compiled ones, or, where there are none, the pure ones.

They are not used when they were built from other sources than lie beside them: that is a checkout whose kernels were
not built again.
BRUCE_KERNELS=pure in the environment chooses the pure ones; BRUCE_KERNELS=compiled makes it an error not to have the
compiled ones.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CHOICE", "COMPILED", "Choice"]

COMPILED: Final = (
    "chunks", "encode", "heads", "lanes", "look", "message_set", "receive", "rows", "segments", "streams",
    "waits",
)  # fmt: skip
"""The modules of `bruce_mp.kernels.compiled`."""
_VARIABLE: Final = "BRUCE_KERNELS"
_COST: Final = "a message costs several times as much CPU"


class Choice(NamedTuple):
    """Whether the compiled kernels are used, and a sentence about it."""

    compiled: bool
    sentence: str


def _find_fault(directory: Path) -> str | None:
    """Why the compiled kernels cannot be used; None if they can."""
    files = {path.name for path in directory.iterdir()}
    if any(files.isdisjoint(name + suffix for suffix in EXTENSION_SUFFIXES) for name in (*COMPILED, "stamp")):
        return "were not built: install the package where there is a C compiler, or a wheel"
    sources = [*sorted(directory.glob("*.pyx")), *sorted(directory.glob("*.pxd"))]
    if sources and _digest(sources) != _digest_when_built():
        return "were built from other sources than are here: run scripts/build-kernels"
    return None


def _digest(sources: Iterable[Path]) -> str:
    import hashlib  # noqa: PLC0415 - brings OpenSSL along; a package that is installed has no sources to look at

    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _digest_when_built() -> str:
    stamp = import_module("bruce_mp.kernels.compiled.stamp")
    return str(stamp.SOURCES)


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
