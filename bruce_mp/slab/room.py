"""The room in a pool of chunks: the number of further messages that fit, in any order and of any topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["PAUSE_RATIO", "chunks_for", "count_fitting_messages", "room_for", "room_for_largest"]

PAUSE_RATIO: Final = 0.75
"""An input pauses between receives if it uses more than this part of its usable chunks."""


def chunks_for(size: int) -> int:
    """Return the maximum number of chunks that a message needs; `size` is its size as received, with the topic."""
    return -(-(size + lay.RECORD_HEADER + lay.RUN_HEADER + lay.CHUNK_HEADER) // lay.CHUNK_BYTES)


def room_for_largest(pool: ChunkPool, span: int, count: int) -> int:
    """Reserve chunks for messages, and return the number of messages, up to `count`, that fit.

    Each message needs at most `span` neighboring chunks.  The function counts twice this room for each message,
    because smaller messages may split the free chunks.
    """
    pool.reserve(2 * count * span, span)
    return pool.count_free_spans(span, 2 * count) // 2


def room_for(pool: ChunkPool, span: int, count: int) -> int:
    """Reserve chunks for messages, and return the number of messages, up to `count`, that fit in any order.

    Each message needs at most `span` neighboring chunks.
    """
    if span > 1:
        return room_for_largest(pool, span, count)
    # Single chunks need no neighbors, so each free chunk has room for a message.
    pool.reserve(count)
    return min(count, pool.own_free_count)


def count_fitting_messages(pool: ChunkPool, count: int, largest_size: int, first_size: int) -> int:
    """Return the number of messages, from the first one and up to `count`, that fit; reclaim chunks if none fits.

    Each message has at most `largest_size` bytes.  The first message has `first_size` bytes: it may fit although a
    message of the largest size does not.
    """
    span = chunks_for(largest_size)
    fitting_count = room_for(pool, span, count)
    if not fitting_count:
        pool.reclaim(pool.capacity)
        fitting_count = room_for(pool, span, count)
    return fitting_count or min(1, pool.count_free_spans(chunks_for(first_size), limit=1))
