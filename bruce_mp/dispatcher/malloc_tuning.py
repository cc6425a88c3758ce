"""Tuning of glibc's heap: the process keeps freed memory.

By default, glibc maps each allocation of a batch's size with mmap() and unmaps it when it is freed.  Each batch then
faults all its pages again, which costs more than filling them.

Separate because no other module of the dispatcher calls the C library.
"""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""
KEPT_BYTES: Final = 8 << 20
"""Free memory that the process keeps: the buffers of the next requests reuse it without page faults."""


def keep_freed_memory() -> None:
    """Keep up to `KEPT_BYTES` of free memory at the end of the heap; without glibc, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
