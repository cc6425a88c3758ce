"""Back-pressure: the number of messages that the input may receive next, and its rest before the next receive.

The input cannot ask a datagram's sender to wait, but the kernel's queue is short, and a blocking sender stops when it
is full.  So above three quarters of the slab the input rests between turns, longer the fuller the slab is.  It also
receives less in a turn, fewer messages if they are large, so that a turn takes only a small part of the free chunks.
Stuck chunks count neither as full nor as room, because a rest does not free them.  When the slab is full all the same,
the configuration decides: the input discards new messages, or receives nothing until there is certainly room.

The input knows only the size of the first datagram of a batch.  So a batch may have as many as would fit if each were
of the largest size; where not even one such fits, the first may come alone if it fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["LONGEST_S", "Allowance", "Backpressure", "chunks_for", "messages_that_fit"]

SOFT: Final = 0.75
"""The part of the usable slab in use above which the input rests."""
SHORTEST_S: Final = 0.001
LONGEST_S: Final = 0.010


MOST_MESSAGES: Final = 512
"""The messages of one turn, between two checks of the slab's room.

Batches would be the wrong unit: with naps a batch may be a single message, and a return for a few dozen messages costs
as much as they do.
"""
LEAST_MESSAGES: Final = 8
LARGEST_PART: Final = 32
"""A turn that takes more than this part of the free chunks is too long; less than a quarter of it is too short."""


class Allowance(NamedTuple):
    """The number of messages that may be received now, and the seconds of rest after them."""

    messages: int
    rest_s: float


NOTHING: Final = Allowance(0, 0.0)


class Backpressure:
    """Computes allowances from the chunks of one input.

    `largest` is the size of its largest message, `batch` the number of messages in its largest batch.  With `blocks`,
    the input receives only messages that certainly find room.
    """

    def __init__(self, pool: ChunkPool, *, largest: int, batch: int, blocks: bool = False) -> None:
        self._pool = pool
        self._span = chunks_for(largest)
        self._batch = batch
        self.blocks = blocks
        self._messages = MOST_MESSAGES
        self._free_before = 0
        """Free chunks at the beginning of the last turn."""

    def allowance(self, next_size: int) -> Allowance:
        """Return the present allowance; the first waiting datagram has `next_size` bytes."""
        soft_free = int(self._pool.usable * (1 - SOFT))
        is_short = self._pool.free_count <= soft_free
        if is_short:
            self._learn(self._free_before - self._pool.free_count)
            self._pool.reclaim(soft_free + 1)
        rest_s = self._rest_s(soft_free)
        self._free_before = self._pool.free_count
        if self.blocks:
            messages = self._room(next_size)
            return Allowance(messages, rest_s if messages else LONGEST_S)
        return Allowance(self._messages if is_short else MOST_MESSAGES, rest_s)

    def _learn(self, taken: int) -> None:
        """Adapt the length of a turn to the number of chunks that the last one took."""
        if taken * LARGEST_PART > self._pool.free_count:
            self._messages = max(LEAST_MESSAGES, self._messages // 2)
        elif taken * LARGEST_PART * 4 < self._pool.free_count:
            self._messages = min(MOST_MESSAGES, self._messages * 2)

    def _rest_s(self, soft_free: int) -> float:
        if self._pool.free_count > soft_free:
            return 0.0
        return SHORTEST_S + (LONGEST_S - SHORTEST_S) * (1 - self._pool.free_count / max(1, soft_free))

    def _room(self, next_size: int) -> int:
        """Return the number of messages that certainly find room."""
        room = _room_for_largest(self._pool, self._span, self._batch)
        if not room:
            self._pool.reclaim(self._pool.capacity)
            room = _room_for_largest(self._pool, self._span, self._batch)
        return room or self._pool.free_spans(chunks_for(next_size), 1)


def _room_for_largest(pool: ChunkPool, span: int, batch: int) -> int:
    """Count messages of any sizes that fit: each takes a span, or two where a smaller one lies across."""
    pool.secure(2 * batch * span, span)
    return pool.free_spans(span, 2 * batch) // 2


def messages_that_fit(pool: ChunkPool, count: int, largest: int, first: int) -> int:
    """Return how many of `count` messages of at most `largest` bytes certainly find room.

    `first` is the size of the first message, which may fit alone.
    """
    span = chunks_for(largest)
    room = _room_of(pool, span, count)
    if not room:
        pool.reclaim(pool.capacity)
        room = _room_of(pool, span, count)
    return room or min(1, pool.free_spans(chunks_for(first), 1))


def _room_of(pool: ChunkPool, span: int, count: int) -> int:
    if span > 1:
        return _room_for_largest(pool, span, count)
    pool.secure(count)
    return min(count, pool.own_free)


def chunks_for(size: int) -> int:
    """Return the largest number of neighbouring chunks that a message of this size needs."""
    return -(-(size + lay.RECORD_HEADER + lay.RUN_HEADER + lay.CHUNK_HEADER) // lay.CHUNK_BYTES)
