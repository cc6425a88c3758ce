"""The kernels in both variants: tests that use kernels run with each; for fixtures see `variant` and `pure_kernels`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.kernels import CHOICE
from bruce_mp.kernels.choice import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANTS: Final = ("pure", "compiled") if CHOICE.compiled else ("pure",)
_PURE: Final = ("encode", "lane", "lanes", "look", "message_set", "parse", "receive", "segments")
_USERS: Final = ("bruce_mp.", "tests.", "support.", "test_")
_OWN: Final = "bruce_mp.kernels.pure"


def _public(package: str, modules: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in modules:
        module = import_module(f"bruce_mp.kernels.{package}.{name}")
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        found |= {name: getattr(module, name) for name in names}
    return found


def replacements(variant: str) -> dict[int, Any]:
    """For the id of each kernel of the other variant the one of this."""
    pure, compiled = _public("pure", _PURE), _public("compiled", COMPILED)
    wanted, other = (pure, compiled) if variant == "pure" else (compiled, pure)
    return {id(other[name]): wanted[name] for name in pure.keys() & compiled.keys() if other[name] is not wanted[name]}


@contextmanager
def kernels(variant: str) -> Iterator[None]:
    """Have everybody who imported kernels use those of a variant."""
    swaps = replacements(variant) if CHOICE.compiled else {}
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if _is_user(name)]:
            for name, value in list(vars(module).items()):
                if id(value) in swaps:
                    patch.setattr(module, name, swaps[id(value)])
        yield


def _is_user(module: str) -> bool:
    return module.startswith(_USERS) and not module.startswith((_OWN, "bruce_mp.kernels.compiled"))


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
