"""The room in a pool of chunks: the number of messages that fit in any order and in any lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["PAUSE_RATIO", "chunks_for", "messages_that_fit", "room_for", "room_for_largest"]

PAUSE_RATIO: Final = 0.75
"""The used part of the usable chunks above which an input pauses between receives."""


def chunks_for(size: int) -> int:
    """Return the most chunks that a message of `size` bytes on the wire, the topic's name included, can need."""
    return -(-(size + lay.RECORD_HEADER + lay.RUN_HEADER + lay.CHUNK_HEADER) // lay.CHUNK_BYTES)


def room_for_largest(pool: ChunkPool, span: int, count: int) -> int:
    """Return the number of messages, up to `count`, that fit if each needs a span of at most `span` chunks.

    Each may need the room of two spans, because smaller messages may split the free chunks.
    """
    pool.reserve(2 * count * span, span)
    return pool.count_free_spans(span, 2 * count) // 2


def room_for(pool: ChunkPool, span: int, count: int) -> int:
    """Return the number of messages, up to `count`, that fit if each needs at most `span` chunks."""
    if span > 1:
        return room_for_largest(pool, span, count)
    # Single chunks need no neighbours, so each free chunk has room for a message.
    pool.reserve(count)
    return min(count, pool.own_free)


def messages_that_fit(pool: ChunkPool, count: int, largest: int, first: int) -> int:
    """Return the number of messages, up to `count`, that fit if each has at most `largest` bytes; reclaim if none does.

    `first` is the size of the first message, which may fit alone.
    """
    span = chunks_for(largest)
    fitting = room_for(pool, span, count)
    if not fitting:
        pool.reclaim(pool.capacity)
        fitting = room_for(pool, span, count)
    return fitting or min(1, pool.count_free_spans(chunks_for(first), limit=1))
