"""The choice between the compiled and the pure kernels of a package: the compiled ones, if they are usable.

Compiled kernels are unusable if they are missing, or if their sources have changed since the build, as in a checkout
that was not rebuilt.  The environment variable BRUCE_KERNELS=pure selects the pure kernels; with
BRUCE_KERNELS=compiled, unusable compiled kernels are an error.
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

_CHOICE_VARIABLE: Final = "BRUCE_KERNELS"
_COST_OF_PURE: Final = "a message costs several times as much CPU"


class KernelChoice(NamedTuple):
    """The selected kernels; `sentence` describes the choice and its reason for the log."""

    compiled: bool
    sentence: str


def kernel_names(package: Path) -> tuple[str, ...]:
    """Return the names of the kernel modules; they are the same in the subpackages `pure` and `compiled`."""
    return tuple(sorted(module.name for module in iter_modules([str(package / "pure")])))


def choose(name: str, package: Path) -> KernelChoice:
    """Choose the kernels of the package `name` in the directory `package`, which has subpackages `pure` and `compiled`.

    Raise StartError if the environment requests compiled kernels that are not usable.
    """
    requested = os.environ.get(_CHOICE_VARIABLE, "")
    if requested == "pure":
        return KernelChoice(
            compiled=False, sentence=f"pure Python kernels, because {_CHOICE_VARIABLE} is pure: {_COST_OF_PURE}"
        )
    defect = _find_defect(f"{name}.compiled", package / "compiled", kernel_names(package))
    if defect is None:
        return KernelChoice(compiled=True, sentence="compiled kernels")
    if requested == "compiled":
        raise StartError(f"{_CHOICE_VARIABLE} requests the compiled kernels, which {defect}.")
    return KernelChoice(compiled=False, sentence=f"pure Python kernels: {_COST_OF_PURE}; the compiled ones {defect}")


def _find_defect(package_name: str, directory: Path, module_names: Iterable[str]) -> str | None:
    """Return why the compiled kernels in `directory` are unusable, such as "were not built: ...", or None if usable."""
    try:
        file_names = {path.name for path in directory.iterdir()}
    except OSError:
        return "are in no directory that can be read, as in a zip: install the package"
    # The build adds the compiled module `stamp`, which stores the digest of the sources.
    if any(file_names.isdisjoint(name + suffix for suffix in EXTENSION_SUFFIXES) for name in (*module_names, "stamp")):
        return "were not built: install the package where there is a C compiler, or a wheel"
    sources = [*sorted(directory.glob("*.pyx")), *sorted(directory.glob("*.pxd"))]
    if sources and _digest(sources) != _digest_when_built(package_name):
        return "were built from other sources than are here: run scripts/build-kernels"
    return None


def _digest(sources: Iterable[Path]) -> str:
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, and an installed package has no sources to hash

    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _digest_when_built(package_name: str) -> str:
    """Return the digest that setup.py compiled into the module `stamp` of the package."""
    return str(import_module(f"{package_name}.stamp").SOURCES)
