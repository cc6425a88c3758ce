"""Back-pressure: how much the input may receive next, and how long it should rest before it looks again.

A datagram's sender cannot be told to wait, but the kernel's queue can: it is short, and a blocking sender stops when it
is full.  So from three quarters of the slab on the input rests a little between batches, longer the fuller it is.  When
the slab is full all the same, the config decides: new messages are discarded, or nothing is received until there is
room for it for certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.chunks import ChunkPool

__all__ = ["Allowance", "Pressure"]

SOFT: Final = 0.75
"""The share of the slab in use from which on the input rests."""
SHORTEST_S: Final = 0.001
LONGEST_S: Final = 0.010


class Allowance(NamedTuple):
    """At most so many messages may be received now; then rest for so many seconds."""

    messages: int
    rest_s: float


class Pressure:
    """Watches the chunks of one input.  `largest` is the size of its largest message, `batch` that of a batch."""

    def __init__(self, pool: ChunkPool, chunks: int, *, largest: int, batch: int, blocks: bool) -> None:
        self._pool = pool
        self._chunks = chunks
        self._soft_free = int(chunks * (1 - SOFT))
        self._span = -(-(largest + lay.RECORD_HEADER + lay.RUN_HEADER + lay.CHUNK_HEADER) // lay.CHUNK_BYTES)
        self._batch = batch
        self._blocks = blocks

    def allowance(self) -> Allowance:
        """What may be received now."""
        if self._pool.free_count > self._soft_free:
            return Allowance(self._batch, 0.0)
        self._pool.reclaim(self._soft_free + 1)
        if self._pool.free_count > self._soft_free:
            return Allowance(self._batch, 0.0)
        rest = SHORTEST_S + (LONGEST_S - SHORTEST_S) * (1 - self._pool.free_count / self._soft_free)
        return Allowance(self._room() if self._blocks else self._batch, rest)

    def _room(self) -> int:
        """Messages that find room whatever their sizes: each may need a span, and a small one may break one up."""
        return self._pool.free_spans(self._span, 2 * self._batch) // 2
