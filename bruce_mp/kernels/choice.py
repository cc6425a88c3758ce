"""The choice between compiled and pure kernels: the compiled ones, if they are usable.

Compiled kernels are not used if they were built from other sources than those beside them, as in a checkout that was
not rebuilt.  In the environment, BRUCE_KERNELS=pure selects the pure kernels, and BRUCE_KERNELS=compiled makes missing
compiled kernels an error.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import StartError
from bruce_mp.kernels import pure

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CHOICE", "KERNELS", "KernelChoice"]

KERNELS: Final = tuple(sorted(module.name for module in iter_modules(pure.__path__)))
"""The modules of `bruce_mp.kernels.pure`; `bruce_mp.kernels.compiled` has one of the same name for each."""
_VARIABLE: Final = "BRUCE_KERNELS"
_COST: Final = "a message costs several times as much CPU"


class KernelChoice(NamedTuple):
    """The selected kernels, with a sentence for the log."""

    compiled: bool
    sentence: str


def _find_fault(directory: Path) -> str | None:
    """Return the reason against the compiled kernels; None if they are usable."""
    files = {path.name for path in directory.iterdir()}
    if any(files.isdisjoint(name + suffix for suffix in EXTENSION_SUFFIXES) for name in (*KERNELS, "stamp")):
        return "were not built: install the package where there is a C compiler, or a wheel"
    sources = [*sorted(directory.glob("*.pyx")), *sorted(directory.glob("*.pxd"))]
    if sources and _digest(sources) != _digest_when_built():
        return "were built from other sources than are here: run scripts/build-kernels"
    return None


def _digest(sources: Iterable[Path]) -> str:
    import hashlib  # noqa: PLC0415 - brings OpenSSL along; an installed package has no sources

    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _digest_when_built() -> str:
    stamp = import_module("bruce_mp.kernels.compiled.stamp")
    return str(stamp.SOURCES)


def _choose(wish: str) -> KernelChoice:
    if wish == "pure":
        return KernelChoice(compiled=False, sentence=f"pure Python kernels, because {_VARIABLE} says so: {_COST}")
    fault = _find_fault(Path(__file__).with_name("compiled"))
    if fault is None:
        return KernelChoice(compiled=True, sentence="compiled kernels")
    if wish == "compiled":
        raise StartError(f"{_VARIABLE} asks for the compiled kernels, which {fault}.")
    return KernelChoice(compiled=False, sentence=f"pure Python kernels: {_COST}; the compiled ones {fault}")


CHOICE: Final = _choose(os.environ.get(_VARIABLE, ""))
