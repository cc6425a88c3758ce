"""The kernels in both variants: the fixture `variant` runs a test with each, `pure_kernels` with the pure ones.

The mark `PURE_KERNELS_ONLY` exempts a test from the compiled variant where all others of its directory have both.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp import kernels as kernels_package
from bruce_mp.kernel_choice import kernel_names
from bruce_mp.kernels import CHOICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.kernels import ChunkPool

KERNELS: Final = kernel_names(Path(kernels_package.__file__).parent)
VARIANTS: Final = ("pure", "compiled") if CHOICE.compiled else ("pure",)
PURE_KERNELS_ONLY: Final = pytest.mark.parametrize("variant", ["pure"], indirect=True)
"""A mark for tests that have the fixture `variant`, and in which processes die at the stores of kernels."""
_USERS: Final = ("bruce_mp.", "tests.", "support.", "test_")
_OWN: Final = ("bruce_mp.kernels.pure", "bruce_mp.kernels.compiled", "bruce_mp.slab.")


def chunk_pool_of(variant: str) -> type[ChunkPool]:
    """Return the chunk pool of a variant, whatever variant the test runs with."""
    found: type[ChunkPool] = import_module(f"bruce_mp.kernels.{variant}.chunks").ChunkPool
    return found


def _interface(variant: str) -> dict[str, Any]:
    """Return the names of the kernels' interface that a variant's modules have."""
    loaded = [vars(import_module(f"bruce_mp.kernels.{variant}.{name}")) for name in KERNELS]
    return {name: module[name] for module in loaded for name in kernels_package.__all__ if name in module}


def replacements(variant: str) -> dict[int, Any]:
    """Map the id of each kernel of the other variant to the kernel of this one."""
    wanted, other = _interface(variant), _interface("compiled" if variant == "pure" else "pure")
    both = wanted.keys() & other.keys()
    return {id(other[name]): wanted[name] for name in both if other[name] is not wanted[name]}


@contextmanager
def kernels(variant: str) -> Iterator[None]:
    """Replace the kernels in all modules that imported them by the kernels of a variant."""
    swaps = replacements(variant) if CHOICE.compiled else {}
    names = set(kernels_package.__all__)
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if _is_user(name)]:
            for name in names & vars(module).keys():
                if (kernel := swaps.get(id(vars(module)[name]))) is not None:
                    patch.setattr(module, name, kernel)
        yield


def _is_user(module: str) -> bool:
    return module.startswith(_USERS) and not module.startswith(_OWN)


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with each variant of the kernels."""
    with kernels(request.param):
        yield request.param


@pytest.fixture(scope="module")
def pure_kernels() -> Iterator[None]:
    """Run tests that inspect each store to memory: only stores of Python can be traced."""
    with kernels("pure"):
        yield
