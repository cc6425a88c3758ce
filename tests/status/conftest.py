"""Fixtures of the status tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.filled_slab import FilledSlab
from support.status_pages import OfflineStatusPages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[OfflineStatusPages]:
    fake = OfflineStatusPages(tmp_path / "slab")
    yield fake
    fake.close()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledSlab]:
    slab = FilledSlab(tmp_path / "slab", known=(b"news",))
    yield slab
    slab.close()
