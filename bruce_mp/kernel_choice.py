"""The choice between the compiled and the pure kernels of a package: the compiled ones, if they are usable.

Compiled kernels are unusable if their sources have changed since the build, as in a checkout that was not rebuilt.  The
environment variable BRUCE_KERNELS=pure selects the pure kernels; BRUCE_KERNELS=compiled makes missing or unusable
compiled kernels an error.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["KernelChoice", "choose", "kernel_names"]

_VARIABLE: Final = "BRUCE_KERNELS"
_COST: Final = "a message costs several times as much CPU"


class KernelChoice(NamedTuple):
    """The selected kernels, with a sentence for the log."""

    compiled: bool
    sentence: str


def kernel_names(package: Path) -> tuple[str, ...]:
    """Return the names of the modules in `pure`; `compiled` has a module of each name."""
    return tuple(sorted(module.name for module in iter_modules([str(package / "pure")])))


def choose(name: str, package: Path) -> KernelChoice:
    """Choose for the package of that name and directory, which has the packages `pure` and `compiled`."""
    requested = os.environ.get(_VARIABLE, "")
    if requested == "pure":
        return KernelChoice(compiled=False, sentence=f"pure Python kernels, because {_VARIABLE} is pure: {_COST}")
    defect = _find_defect(f"{name}.compiled", package / "compiled", kernel_names(package))
    if defect is None:
        return KernelChoice(compiled=True, sentence="compiled kernels")
    if requested == "compiled":
        raise StartError(f"{_VARIABLE} requests the compiled kernels, which {defect}.")
    return KernelChoice(compiled=False, sentence=f"pure Python kernels: {_COST}; the compiled ones {defect}")


def _find_defect(compiled: str, directory: Path, names: Iterable[str]) -> str | None:
    """Return the reason why the compiled kernels are unusable, as the end of a sentence; None if they are usable."""
    try:
        files = {path.name for path in directory.iterdir()}
    except OSError:
        return "are in no directory that can be read, as in a zip: install the package"
    # `stamp` has the digest of the sources at the build.
    if any(files.isdisjoint(name + suffix for suffix in EXTENSION_SUFFIXES) for name in (*names, "stamp")):
        return "were not built: install the package where there is a C compiler, or a wheel"
    sources = [*sorted(directory.glob("*.pyx")), *sorted(directory.glob("*.pxd"))]
    if sources and _digest(sources) != _digest_when_built(compiled):
        return "were built from other sources than are here: run scripts/build-kernels"
    return None


def _digest(sources: Iterable[Path]) -> str:
    import hashlib  # noqa: PLC0415 - loads OpenSSL; an installed package has no sources to hash

    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _digest_when_built(compiled: str) -> str:
    """Return the digest that setup.py compiled into `stamp`."""
    return str(import_module(f"{compiled}.stamp").SOURCES)
