"""The kernels in both variants: tests that use kernels run with each; for fixtures see `variant` and `pure_kernels`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp import kernels as kernels_package
from bruce_mp.kernels import CHOICE
from bruce_mp.kernels.choice import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIANTS: Final = ("pure", "compiled") if CHOICE.compiled else ("pure",)
_MODULES: Final = (
    "split_stream", "encode", "headers", "intake", "lanes", "inspect", "message_set", "receive", "segments", "outcomes",
    "wait_times",
)  # fmt: skip
_PURE: Final = tuple(f"bruce_mp.kernels.pure.{name}" for name in _MODULES)
_USERS: Final = ("bruce_mp.", "tests.", "support.", "test_")
_OWN: Final = ("bruce_mp.kernels.pure", "bruce_mp.kernels.compiled", "bruce_mp.slab.")


def _interface(modules: Iterable[str]) -> dict[str, Any]:
    """The names of the kernels' interface that modules import."""
    loaded = [vars(import_module(module)) for module in modules]
    return {name: module[name] for module in loaded for name in kernels_package.__all__ if name in module}


def replacements(variant: str) -> dict[int, Any]:
    """For the id of each kernel of the other variant the one of this."""
    pure = _interface(["bruce_mp.slab.chunks", "bruce_mp.slab.rows", *_PURE])
    compiled = _interface([f"bruce_mp.kernels.compiled.{name}" for name in COMPILED])
    wanted, other = (pure, compiled) if variant == "pure" else (compiled, pure)
    both = pure.keys() & compiled.keys()
    return {id(other[name]): wanted[name] for name in both if other[name] is not wanted[name]}


@contextmanager
def kernels(variant: str) -> Iterator[None]:
    """Replace the kernels in all modules that imported them by the kernels of a variant."""
    swaps = replacements(variant) if CHOICE.compiled else {}
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if _is_user(name)]:
            for name, value in list(vars(module).items()):
                if id(value) in swaps:
                    patch.setattr(module, name, swaps[id(value)])
        yield


def _is_user(module: str) -> bool:
    return module.startswith(_USERS) and not module.startswith(_OWN)


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with each variant of the kernels."""
    with kernels(request.param):
        yield request.param


@pytest.fixture(scope="module")
def pure_kernels() -> Iterator[None]:
    """For tests that look at each store to memory, which can be done only to Python."""
    with kernels("pure"):
        yield
