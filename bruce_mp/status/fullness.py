"""How full the slab is: the chunks that hold a message which is not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab.chunks import chunk_heads, is_settled
from bruce_mp.slab.layout import ChunkState

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["share_in_use"]


def share_in_use(slab: Slab) -> float:
    """The share of the slab's chunks that cannot be reclaimed now, from 0 to 1."""
    used = sum(
        span
        for chunk, state, span, _ in chunk_heads(slab)
        if state is not ChunkState.FREE and not is_settled(slab, chunk)
    )
    return used / slab.geometry.chunks
