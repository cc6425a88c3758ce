"""The C library's heap: what was freed is kept for what comes next.

Batches are as large as the pieces that glibc gets from the kernel for one allocation and gives back at once.  The next
batch would pay for each of its pages again, which costs more than filling them.
"""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 8 << 20


def keep_freed_memory() -> None:
    """Keep up to 8 MiB of free memory at the end of this process's heap; does nothing where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
