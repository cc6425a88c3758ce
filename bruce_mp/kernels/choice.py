"""The choice between compiled and pure kernels: the compiled ones, if they are usable.

Compiled kernels are unusable if their sources have changed since the build, as in a checkout that was not rebuilt.  The
environment variable BRUCE_KERNELS=pure selects the pure kernels; BRUCE_KERNELS=compiled makes missing or unusable
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


def _find_defect(directory: Path) -> str | None:
    """Return the reason why the compiled kernels are unusable, as the end of a sentence; None if they are usable."""
    files = {path.name for path in directory.iterdir()}
    if any(files.isdisjoint(name + suffix for suffix in EXTENSION_SUFFIXES) for name in (*KERNELS, "stamp")):
        return "were not built: install the package where there is a C compiler, or a wheel"
    sources = [*sorted(directory.glob("*.pyx")), *sorted(directory.glob("*.pxd"))]
    if sources and _digest(sources) != _digest_when_built():
        return "were built from other sources than are here: run scripts/build-kernels"
    return None


def _digest(sources: Iterable[Path]) -> str:
    import hashlib  # noqa: PLC0415 - loads OpenSSL; an installed package has no sources to hash

    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _digest_when_built() -> str:
    """Return the digest of the sources that setup.py compiled into the module `stamp`."""
    stamp = import_module("bruce_mp.kernels.compiled.stamp")
    return str(stamp.SOURCES)


def _choose(requested: str) -> KernelChoice:
    if requested == "pure":
        return KernelChoice(compiled=False, sentence=f"pure Python kernels, because {_VARIABLE} is pure: {_COST}")
    defect = _find_defect(Path(__file__).with_name("compiled"))
    if defect is None:
        return KernelChoice(compiled=True, sentence="compiled kernels")
    if requested == "compiled":
        raise StartError(f"{_VARIABLE} requests the compiled kernels, which {defect}.")
    return KernelChoice(compiled=False, sentence=f"pure Python kernels: {_COST}; the compiled ones {defect}")


CHOICE: Final = _choose(os.environ.get(_VARIABLE, ""))
