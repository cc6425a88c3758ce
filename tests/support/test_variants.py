"""An input of a test has the lanes and the chunk pool of one variant, as in a daemon."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from support.slabs import Input
from support.streams import StreamInput
from support.variants import VARIANTS, kernels

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab


def modules(it: Input | StreamInput) -> tuple[str, str]:
    """Return the modules of an input's pool and lanes."""
    return type(it.pool).__module__, type(it.lanes).__module__


def expected(variant: str) -> tuple[str, str]:
    found = [import_module(f"bruce_mp.kernels.{variant}.{name}") for name in ("chunks", "lanes")]
    return found[0].ChunkPool.__module__, found[1].Lanes.__module__


def test_inputs_have_the_kernels_of_a_daemon(slab: Slab) -> None:
    assert modules(Input(slab)) == modules(StreamInput(slab)) == expected(VARIANTS[-1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_have_the_kernels_that_a_test_wants(slab: Slab, variant: str) -> None:
    with kernels(variant):
        assert modules(Input(slab)) == modules(StreamInput(slab)) == expected(variant)
