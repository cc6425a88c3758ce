"""Back-pressure: how much the input may receive next, and how long it should rest before it looks again.

A datagram's sender cannot be told to wait, but the kernel's queue can: it is short, and a blocking sender stops when it
is full.  So from three quarters of the slab on the input rests a little between turns, longer the fuller it is, and
takes in less in a turn, of large messages fewer, so that a turn never takes more than a part of what is left.  What is
stuck in the slab does not count, neither as full nor as room: to rest for it would be in vain.  When the slab is full
all the same, the config decides: new messages are discarded, or nothing is received until there is room for it for
certain.

How large the datagrams of a batch are is known only of the first.  So a batch may have as many as would find room if
each were of the largest size; where not even one would, the first may come alone if it fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["LONGEST_S", "Allowance", "Pressure", "chunks_for", "messages_that_fit"]

SOFT: Final = 0.75
"""The share of the slab in use from which on the input rests."""
SHORTEST_S: Final = 0.001
LONGEST_S: Final = 0.010


MOST_MESSAGES: Final = 512
"""In one turn, between two looks at the slab's room.  Not batches: at a pace a batch is a single message, and to return
for a few dozen of them costs as much as they do."""
LEAST_MESSAGES: Final = 8
LARGEST_PART: Final = 32
"""A turn that took more than this part of the free chunks was too long, and one that took less than a quarter of it
too short."""


class Allowance(NamedTuple):
    """At most so many messages may be received now; then rest for so many seconds."""

    messages: int
    rest_s: float


NOTHING: Final = Allowance(0, 0.0)


class Pressure:
    """Watches the chunks of one input.  `largest` is the size of its largest message, `batch` that of a batch.

    `blocks`: nothing is received that may not find room.
    """

    def __init__(self, pool: ChunkPool, *, largest: int, batch: int, blocks: bool = False) -> None:
        self._pool = pool
        self._span = chunks_for(largest)
        self._batch = batch
        self.blocks = blocks
        self._messages = MOST_MESSAGES
        self._free_before = 0
        """When the last turn began."""

    def allowance(self, next_size: int) -> Allowance:
        """What may be received now, when the datagram that comes first has `next_size` bytes."""
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
        """The last turn took so many chunks, of those that were free."""
        if taken * LARGEST_PART > self._pool.free_count:
            self._messages = max(LEAST_MESSAGES, self._messages // 2)
        elif taken * LARGEST_PART * 4 < self._pool.free_count:
            self._messages = min(MOST_MESSAGES, self._messages * 2)

    def _rest_s(self, soft_free: int) -> float:
        if self._pool.free_count > soft_free:
            return 0.0
        return SHORTEST_S + (LONGEST_S - SHORTEST_S) * (1 - self._pool.free_count / max(1, soft_free))

    def _room(self, next_size: int) -> int:
        """Messages that find room for certain."""
        room = _room_for_largest(self._pool, self._span, self._batch)
        if not room:
            self._pool.reclaim(self._pool.capacity)
            room = _room_for_largest(self._pool, self._span, self._batch)
        return room or self._pool.free_spans(chunks_for(next_size), 1)


def _room_for_largest(pool: ChunkPool, span: int, batch: int) -> int:
    """Messages that find room whatever their sizes: each takes a span, or two where a smaller one lies across."""
    pool.secure(2 * batch * span, span)
    return pool.free_spans(span, 2 * batch) // 2


def messages_that_fit(pool: ChunkPool, count: int, largest: int, first: int) -> int:
    """How many of `count` messages of at most `largest` bytes find room for certain; `first` is the size of the first.

    It may be that only that one does.
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
    """Neighbouring chunks that a message of this size needs at the most."""
    return -(-(size + lay.RECORD_HEADER + lay.RUN_HEADER + lay.CHUNK_HEADER) // lay.CHUNK_BYTES)
