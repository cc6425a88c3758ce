"""Simulate a full disk for this process."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["files_end_at"]


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Limit the size of all files of this process.

    Do not use it in a fixture: between fixtures and test pytest writes its output, perhaps into a long file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
