"""Crash tests interrupt every store, so they use the pure kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_compiled_kernels(pure_kernels: None) -> None:
    pass
