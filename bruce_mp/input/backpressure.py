"""Backpressure: the number of messages that the datagram input may receive next, and the pause after them.

A *turn* is one call that receives up to that number of messages.  The input cannot ask a datagram's sender to wait.
The socket's queue in the kernel is short, however, and a blocking sender waits while the queue is full.  So while more
than three quarters of the slab are in use, the input pauses between turns: the fuller the slab, the longer the pause.
It also shortens its turns, so that a turn takes only a small part of the free chunks.  Stuck chunks (`slab/chunks.py`)
count neither as used nor as free, because a pause does not free them.  If the slab becomes full nevertheless, the input
discards new messages or stops receiving, as configured (`when_full`).

With `blocks` (`when_full = "block"`) the input receives only messages that certainly find room.  It knows the size of
the first waiting datagram only.  So it receives as many messages as would fit if each had the largest size.  If not
even one would fit, it receives the first message alone, provided that this message fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.room import PAUSE_RATIO, chunks_for, room_for_largest

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["MAX_PAUSE_S", "Allowance", "Backpressure"]

MIN_PAUSE_S: Final = 0.001
MAX_PAUSE_S: Final = 0.010
"""Bounds of the pause between turns; the pause grows as the free memory shrinks."""

MAX_MESSAGES: Final = 512
"""Largest number of messages in a turn; the input checks the slab's room once in each turn.

The limit is in messages, not in batches: if the input naps (`receive_coalescing.py`), a batch may be a single message,
and a check costs as much as receiving a few dozen messages.
"""
MIN_MESSAGES: Final = 8
"""Smallest limit on the messages of a turn: in a shorter turn, the check would cost more than the messages."""
PART_DIVISOR: Final = 32
"""A turn should take at most 1/PART_DIVISOR of the free chunks; if it took more, the next turn is shorter."""
SHORT_TURN_FACTOR: Final = 4
"""If a turn took less than 1/SHORT_TURN_FACTOR of these chunks, the next turn is longer."""


class Allowance(NamedTuple):
    """The number of messages that may be received now, and the pause in seconds after them."""

    message_count: int
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
        self._turn_limit = MAX_MESSAGES
        """Largest number of messages in a turn while chunks are scarce."""
        self._free_at_turn_start = 0
        """Free chunks at the beginning of the last turn."""

    def next_allowance(self, next_size: int) -> Allowance:
        """Reclaim chunks and return the next allowance; `next_size` is the size of the first waiting datagram."""
        watermark = int(self._pool.usable * (1 - PAUSE_RATIO))  # chunks are scarce if no more than these are free
        is_scarce = self._pool.free_count <= watermark
        if is_scarce:
            self._adapt_turn(self._free_at_turn_start - self._pool.free_count)
            self._pool.reclaim(watermark + 1)  # stop as soon as chunks are no longer scarce
        pause_s = self._pause_s(watermark)
        self._free_at_turn_start = self._pool.free_count
        if self.blocks:
            message_count = self._count_fitting(next_size)
            return Allowance(message_count, pause_s if message_count else MAX_PAUSE_S)
        return Allowance(self._turn_limit if is_scarce else MAX_MESSAGES, pause_s)

    def _adapt_turn(self, taken_chunks: int) -> None:
        """Shorten or lengthen the turns, by the number of chunks that the last turn took."""
        if taken_chunks * PART_DIVISOR > self._pool.free_count:
            self._turn_limit = max(MIN_MESSAGES, self._turn_limit // 2)
        elif taken_chunks * PART_DIVISOR * SHORT_TURN_FACTOR < self._pool.free_count:
            self._turn_limit = min(MAX_MESSAGES, self._turn_limit * 2)

    def _pause_s(self, watermark: int) -> float:
        if self._pool.free_count > watermark:
            return 0.0
        return MIN_PAUSE_S + (MAX_PAUSE_S - MIN_PAUSE_S) * (1 - self._pool.free_count / max(1, watermark))

    def _count_fitting(self, next_size: int) -> int:
        """Return how many messages of the largest size find room; if none does, 1 if the first message fits, else 0."""
        room = room_for_largest(self._pool, self._chunks_of_largest, self._max_batch)
        if not room:
            self._pool.reclaim(self._pool.capacity)
            room = room_for_largest(self._pool, self._chunks_of_largest, self._max_batch)
        return room or self._pool.count_free_spans(chunks_for(next_size), 1)
