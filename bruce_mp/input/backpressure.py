"""Backpressure: the number of messages that the datagram input may receive next, and the pause after them.

A *turn* is one call that receives up to that number.  The input cannot ask a datagram's sender to wait.  The kernel's
queue is short, however, and a blocking sender stops when the queue is full.  So with more than three quarters of the
slab in use, the input pauses between turns, longer the fuller the slab is.  It also shortens its turns, so that a turn
takes only a small part of the free chunks.  Stuck chunks (`slab/chunks.py`) count neither as used nor as free, because
a pause does not free them.  When the slab is full nevertheless, the input discards new messages or stops receiving, as
configured.

With `blocks` the input receives only messages that certainly find room.  It knows the size of the first datagram only.
So it receives as many messages as would fit at the largest size, or the first alone if only that one fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.room import PAUSE_RATIO, chunks_for, room_for_largest

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["MAX_PAUSE_S", "Allowance", "Backpressure"]

MIN_PAUSE_S: Final = 0.001
MAX_PAUSE_S: Final = 0.010
"""Bounds of the pause while the slab is nearly full; the pause grows as the free memory shrinks."""

MAX_MESSAGES: Final = 512
"""Largest number of messages in a turn, between two checks of the slab's room.

It counts messages instead of batches: with naps, a batch may be a single message, and each check costs as much as a
few dozen messages.
"""
MIN_MESSAGES: Final = 8
"""The fewest messages of a turn, below which the cost of a turn outweighs its messages."""
PART_DIVISOR: Final = 32
"""A turn should take at most the free chunks divided by this number."""
SHORT_TURN_FACTOR: Final = 4
"""If a turn took less than that limit divided by this number, the next turn gets longer."""


class Allowance(NamedTuple):
    """The number of messages that may be received now, and the pause in seconds after them."""

    messages: int
    pause_s: float


class Backpressure:
    """Computes allowances from the free chunks of one input.

    A message has at most `max_size` bytes, a batch at most `max_batch` messages.
    """

    def __init__(self, pool: ChunkPool, *, max_size: int, max_batch: int, blocks: bool = False) -> None:
        self._pool = pool
        self._chunks_of_largest = chunks_for(max_size)
        self._max_batch = max_batch
        self.blocks = blocks
        self._turn_messages = MAX_MESSAGES
        """The number of messages in a turn while chunks are scarce."""
        self._free_before = 0
        """Free chunks at the beginning of the last turn."""

    def next_allowance(self, next_size: int) -> Allowance:
        """Reclaim chunks and return the next allowance; `next_size` is the size of the first waiting datagram."""
        watermark = int(self._pool.usable * (1 - PAUSE_RATIO))  # in free chunks
        is_scarce = self._pool.free_count <= watermark
        if is_scarce:
            self._adapt_turn(self._free_before - self._pool.free_count)
            self._pool.reclaim(watermark + 1)
        pause_s = self._pause_s(watermark)
        self._free_before = self._pool.free_count
        if self.blocks:
            messages = self._count_fitting(next_size)
            return Allowance(messages, pause_s if messages else MAX_PAUSE_S)
        return Allowance(self._turn_messages if is_scarce else MAX_MESSAGES, pause_s)

    def _adapt_turn(self, taken: int) -> None:
        """Adapt the length of a turn to the number of chunks that the last one took."""
        if taken * PART_DIVISOR > self._pool.free_count:
            self._turn_messages = max(MIN_MESSAGES, self._turn_messages // 2)
        elif taken * PART_DIVISOR * SHORT_TURN_FACTOR < self._pool.free_count:
            self._turn_messages = min(MAX_MESSAGES, self._turn_messages * 2)

    def _pause_s(self, watermark: int) -> float:
        if self._pool.free_count > watermark:
            return 0.0
        return MIN_PAUSE_S + (MAX_PAUSE_S - MIN_PAUSE_S) * (1 - self._pool.free_count / max(1, watermark))

    def _count_fitting(self, next_size: int) -> int:
        room = room_for_largest(self._pool, self._chunks_of_largest, self._max_batch)
        if not room:
            self._pool.reclaim(self._pool.capacity)
            room = room_for_largest(self._pool, self._chunks_of_largest, self._max_batch)
        return room or self._pool.count_free_spans(chunks_for(next_size), 1)
