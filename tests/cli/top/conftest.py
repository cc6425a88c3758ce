"""Fixtures of the tests of `bruce top`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.status_pages import OfflineStatusPages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[OfflineStatusPages]:
    pages = OfflineStatusPages(tmp_path / "slab")
    yield pages
    pages.close()
