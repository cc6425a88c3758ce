"""Backpressure: the number of messages that the datagram input may receive next, and the pause after them.

A *turn* is one call that receives up to that number of messages.  The input cannot ask the sender of a datagram to
wait.  But the queue of the socket is short, and a blocking sender waits while the queue is full.  So while more than
three quarters of the slab are in use, the input pauses between turns: the fuller the slab, the longer the pause.
It also shortens its turns, so that a turn takes only a small part of the free chunks.  Stuck chunks (`slab/chunks.py`)
count neither as used nor as free, because a pause does not free them.  If the slab becomes full in spite of the pauses,
the input discards new messages or stops receiving, as configured (`when_full`).

If `senders_wait` is True (`when_full = "block"`), the input receives only messages that certainly find room.  It knows
only the size of the first waiting datagram.  So it receives as many messages as find room if each has the largest size.
If there is no room for one of the largest size, it receives only the first message, and only if this message fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.room import PAUSE_RATIO, chunks_for, room_for_largest

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["MAX_PAUSE_S", "Allowance", "Backpressure"]

MIN_PAUSE_S: Final = 0.001
MAX_PAUSE_S: Final = 0.010
"""Bounds of the pause between two turns."""

MAX_MESSAGES: Final = 512
"""Largest number of messages in a turn.  The input checks the slab's room once in each turn.

A turn may be several batches: if the input naps (`receive_coalescing.py`), a batch may be a single message, and a check
for each batch would cost as much as receiving a few dozen messages.
"""
MIN_MESSAGES: Final = 8
"""Lower bound of the limit on a turn: in a shorter turn, the check would cost more than the messages."""
PART_DIVISOR: Final = 32
"""If a turn took more than 1/PART_DIVISOR of the free chunks, the next turn is shorter."""
SHORT_TURN_FACTOR: Final = 4
"""If a turn took less than 1/(PART_DIVISOR * SHORT_TURN_FACTOR) of the free chunks, the next turn is longer."""


class Allowance(NamedTuple):
    """The largest number of messages in the next turn, and the pause in seconds after the turn."""

    message_count: int
    pause_s: float


class Backpressure:
    """Computes allowances from the free chunks of one input.

    A message has at most `max_size` bytes, and a batch at most `max_batch` messages.
    """

    def __init__(self, pool: ChunkPool, *, max_size: int, max_batch: int, senders_wait: bool = False) -> None:
        self._pool = pool
        self._chunk_count_of_largest = chunks_for(max_size)
        self._max_batch = max_batch
        self.senders_wait = senders_wait
        self._scarce_turn_limit = MAX_MESSAGES
        """Largest number of messages in a turn while chunks are scarce."""
        self._last_free_count = 0
        """Number of free chunks at the beginning of the last turn."""

    def next_allowance(self, next_size: int) -> Allowance:
        """Reclaim chunks if few are free, and return the next allowance.

        `next_size` is the size of the first waiting datagram; it is used only if `senders_wait` is True.
        """
        watermark = int(self._pool.usable * (1 - PAUSE_RATIO))  # chunks are scarce if no more than this are free
        free_count = self._pool.free_count
        is_scarce = free_count <= watermark
        if is_scarce:
            self._adapt_turn(self._last_free_count - free_count)
            self._pool.reclaim(watermark + 1)  # until chunks are no longer scarce
            free_count = self._pool.free_count
        self._last_free_count = free_count
        pause_s = 0.0 if free_count > watermark else _pause_s(free_count, watermark)
        if self.senders_wait:
            message_count = self._count_fitting(next_size)
            return Allowance(message_count, pause_s if message_count else MAX_PAUSE_S)
        return Allowance(self._scarce_turn_limit if is_scarce else MAX_MESSAGES, pause_s)

    def _adapt_turn(self, taken_chunk_count: int) -> None:
        """Shorten or lengthen the next turns; the last turn took `taken_chunk_count` chunks."""
        if taken_chunk_count * PART_DIVISOR > self._pool.free_count:
            self._scarce_turn_limit = max(MIN_MESSAGES, self._scarce_turn_limit // 2)
        elif taken_chunk_count * PART_DIVISOR * SHORT_TURN_FACTOR < self._pool.free_count:
            self._scarce_turn_limit = min(MAX_MESSAGES, self._scarce_turn_limit * 2)

    def _count_fitting(self, next_size: int) -> int:
        """Return how many messages of the largest size find room; if none does, 1 if the first message fits, else 0."""
        room = room_for_largest(self._pool, self._chunk_count_of_largest, self._max_batch)
        if not room:
            self._pool.reclaim(self._pool.capacity)
            room = room_for_largest(self._pool, self._chunk_count_of_largest, self._max_batch)
        return room or self._pool.count_free_spans(chunks_for(next_size), 1)


def _pause_s(free_count: int, watermark: int) -> float:
    """Return the pause in seconds after a turn while chunks are scarce."""
    return MIN_PAUSE_S + (MAX_PAUSE_S - MIN_PAUSE_S) * (1 - free_count / max(1, watermark))
