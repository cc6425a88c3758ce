"""All tests of the router run with both variants of the kernels, except for those marked `PURE_KERNELS_ONLY`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def with_variant(variant: str) -> str:
    return variant
