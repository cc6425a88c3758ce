"""All tests of kernels run with both variants."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def with_variant(variant: str) -> str:
    return variant
