"""The division of the slab's chunks among the inputs.

Neighboring chunks are grouped into *shares*.  A table in the superblock has, for each share, the row of the input that
owns the share; 0 means free.  An input claims a share when it runs out of chunks, under a file lock that the kernel
releases if the process dies.  When shares are scarce, an input releases each share without a chunk in use, by one
store.  A dead input's shares stay with its row, for its successor.

Half of the slab is guaranteed to the inputs, in equal parts; any input may claim the other half.  Without a guarantee,
inputs that let their clients wait for room could take all memory from inputs that must discard messages.  For an input
that owns no share, only an eighth of its guaranteed part is kept free, so that the others may use nearly all of the
slab.  When that input receives messages, it claims the shares that the others release, up to its guaranteed part.
"""

from __future__ import annotations

import fcntl
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["Division", "Shares", "claimed_chunks", "rebuild_table", "share_size"]

_LOCK_TRIES: Final = 50
"""Number of attempts to get the lock before a claim fails."""
_LOCK_PAUSE_S: Final = 0.0001
"""Pause between two attempts; a process holds the lock for microseconds."""
_IDLE_DIVISOR: Final = 8
"""An input without shares is guaranteed only its equal part divided by this number."""
_SCARCE_DIVISOR: Final = 4
"""Shares are scarce if less than one in this many is free."""


class Division(NamedTuple):
    """One state of the table, with the numbers that an input computes from it."""

    table: bytes
    claimable_share_count: int
    """Number of shares that the input may claim; below 1 if all free shares are kept for guarantees."""
    capacity: int
    """Number of chunks of the slab, less the chunks that are guaranteed to other inputs at present."""
    obtainable_chunk_count: int
    """Number of chunks in the shares that the input may claim."""
    are_scarce: bool
    """True if inputs should release their shares without used chunks."""


class Shares:
    """The shares of input row `owner`; `peers` are the rows of all inputs of the daemon."""

    def __init__(self, slab: Slab, owner: int, peers: Sequence[int] = ()) -> None:
        chunks = slab.geometry.chunks
        self.size = share_size(chunks)
        """Number of chunks in a share; the last share may have fewer."""
        self.count = _ceil_divide(chunks, self.size)
        """Number of shares in the slab."""
        self._last_size = chunks - (self.count - 1) * self.size
        """Number of chunks in the last share."""
        self._table = slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + self.count]
        self._owner = owner
        self._other_inputs = [peer for peer in peers if peer != owner]
        self._full_guarantee = self.count // (2 * (len(self._other_inputs) + 1))
        """Number of shares that are guaranteed to each input that owns a share."""
        self._slab = slab
        self._cached_division = self._divide(bytes(self._table))

    def chunks_of(self, share: int) -> range:
        first = share * self.size
        return range(first, first + (self._last_size if share == self.count - 1 else self.size))

    @property
    def own_shares(self) -> list[int]:
        return [share for share, owner in enumerate(self._table.tolist()) if owner == self._owner]

    @property
    def division(self) -> Division:
        """Return the division for the present table; compute it again if an input has changed the table."""
        table = bytes(self._table)
        if table != self._cached_division.table:
            self._cached_division = self._divide(table)
        return self._cached_division

    def _divide(self, table: bytes) -> Division:
        # The number of shares that each other input owns, and the number that is guaranteed to it at present.
        owned_counts = [table.count(other) for other in self._other_inputs]
        idle_guarantee = _ceil_divide(self._full_guarantee, _IDLE_DIVISOR)
        guaranteed_counts = [self._full_guarantee if owned else idle_guarantee for owned in owned_counts]
        free_count = table.count(0)
        # The number of free shares that are kept for inputs that own fewer than are guaranteed to them.
        kept_count = sum(
            max(0, guaranteed - owned) for guaranteed, owned in zip(guaranteed_counts, owned_counts, strict=True)
        )
        chunks = (self.count - 1) * self.size + self._last_size
        last_shortfall = 0 if table[-1] else self.size - self._last_size  # a free last share may have fewer chunks
        return Division(
            table=table,
            claimable_share_count=free_count - kept_count,
            capacity=chunks - sum(guaranteed_counts) * self.size,
            obtainable_chunk_count=max(0, (free_count - kept_count) * self.size - last_shortfall),
            are_scarce=bool(self._other_inputs) and free_count * _SCARCE_DIVISOR < self.count,
        )

    @property
    def free_runs(self) -> Iterator[range]:
        """Yield the neighboring free shares, in ascending order."""
        table = bytes(self._table)
        first = table.find(0)
        while first >= 0:
            stop = self.count - len(table[first:].lstrip(b"\0"))
            yield range(first, stop)
            first = table.find(0, stop)

    def chunks_of_run(self, run: range) -> range:
        """Return the chunks of neighboring shares."""
        return range(run.start * self.size, self.chunks_of(run[-1]).stop)

    def claim_one(self) -> int | None:
        """Claim the first free share and return it; return None if this input may claim none."""
        with self._lock() as is_locked:
            division = self.division
            if not is_locked or division.claimable_share_count < 1:
                return None
            share = division.table.index(0)
            self._table[share] = self._owner
            return share

    def claim(self, shares: Sequence[int]) -> bool:
        """Claim all these shares; if this input may not claim all of them, claim none and return False."""
        with self._lock() as is_locked:
            division = self.division
            are_free = not any(division.table[share] for share in shares)
            if not is_locked or division.claimable_share_count < len(shares) or not are_free:
                return False
            for share in shares:
                self._table[share] = self._owner
            return True

    def release(self, share: int) -> None:
        """Make a share free; the caller has checked that none of its chunks is in use."""
        self._table[share] = 0

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock that all inputs share; yield False if another process, perhaps stopped, keeps it for 5 ms."""
        if not self._other_inputs:
            yield True
            return
        is_locked = self._try_lock()
        try:
            yield is_locked
        finally:
            if is_locked:
                fcntl.lockf(self._slab.descriptor, fcntl.LOCK_UN, 1, lay.SUPER_SHARES)

    def _try_lock(self) -> bool:
        """Lock the first byte of the table in the slab file; return False if another process keeps it locked."""
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.lockf(self._slab.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lay.SUPER_SHARES)
            except OSError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return True
        return False


def share_size(chunks: int) -> int:
    """Return the number of chunks in each share of a slab with `chunks` chunks."""
    return _ceil_divide(chunks, lay.SHARES_MAX)


def _ceil_divide(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)


def claimed_chunks(slab: Slab) -> list[range]:
    """Return the ranges of chunks in claimed shares, which include all chunks in use.

    For a private copy return one range of all chunks, because its table may be damaged.
    """
    chunks = slab.geometry.chunks
    if slab.is_private:
        return [range(chunks)]
    size = share_size(chunks)
    table = bytes(slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + _ceil_divide(chunks, size)])
    return [range(found.start() * size, min(found.end() * size, chunks)) for found in _OWNED.finditer(table)]


_OWNED: Final = re.compile(rb"[^\0]+")


def rebuild_table(slab: Slab, spans: Sequence[tuple[int, int]]) -> None:
    """Rewrite the table from the owners of the chunks in use; `spans` are pairs of first chunk and length.

    No other process may use the slab: only the supervisor calls this, before it starts the inputs.
    """
    shares = Shares(slab, owner=0)  # row 0 is no input: the object only tells the size and number of shares
    table = bytearray(shares.count)
    for chunk, span in spans:
        owner = slab.owner_of(chunk)
        first, last = chunk // shares.size, (chunk + span - 1) // shares.size
        table[first : last + 1] = bytes([owner]) * (last + 1 - first)
    slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + shares.count] = bytes(table)
