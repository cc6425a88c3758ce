"""The division of the slab's chunks among the inputs.

Chunks are grouped into *shares* of neighbours.  A table in the superblock has the row of the input that owns each
share; 0 means free.  An input claims a share when it runs out of chunks, under a file lock that the kernel releases if
the process dies.  It releases an empty share with one store when shares are scarce.  A dead input's shares stay with
its row, for its successor.

Half of the slab is guaranteed to the inputs, in equal parts; any of them may claim the rest.  So an input that lets
its clients wait for room cannot take the memory of one that would then have to discard messages.  For an input that
owns no share, only an eighth of its part is kept free, so that the others may use nearly all of the slab.  When it
receives messages, it claims the shares that the others release, up to its part.
"""

from __future__ import annotations

import fcntl
import os
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
"""Tries for the lock, after which the claim fails."""
_LOCK_PAUSE_S: Final = 0.0001
"""Pause between two tries; a process holds the lock for microseconds."""
_IDLE_DIVISOR: Final = 8
"""An input without shares is guaranteed its part divided by this number."""
_SCARCE_DIVISOR: Final = 4
"""Shares are scarce if fewer are free than all shares divided by this number."""


class Division(NamedTuple):
    """The effects of one state of the table for an input."""

    table: bytes
    claimable_shares: int
    capacity: int
    """Number of chunks of the slab, less those guaranteed to other inputs at present."""
    obtainable: int
    """Number of chunks in shares that the input could claim now."""
    are_scarce: bool
    """True if inputs should release empty shares."""


class Shares:
    """The shares of input row `owner`; `peers` are the rows of all inputs of the daemon."""

    def __init__(self, slab: Slab, owner: int, peers: Sequence[int] = ()) -> None:
        chunks = slab.geometry.chunks
        self.size = share_size(chunks)
        """Number of chunks in a share; the last share may have fewer."""
        self.count = _divide_up(chunks, self.size)
        self._last_size = chunks - (self.count - 1) * self.size
        self._table = slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + self.count]
        self._owner = owner
        self._others = [peer for peer in peers if peer != owner]
        self._guaranteed = self.count // (2 * (len(self._others) + 1))
        """Number of shares that are guaranteed to each input."""
        self._lock_file = os.open(slab.path, os.O_RDWR | os.O_CLOEXEC) if self._others else -1
        self._cached_division = self._divide(bytes(self._table))

    def __del__(self) -> None:
        if getattr(self, "_lock_file", -1) >= 0:  # missing if the constructor failed
            os.close(self._lock_file)

    def chunks_of(self, share: int) -> range:
        first = share * self.size
        return range(first, first + (self._last_size if share == self.count - 1 else self.size))

    @property
    def own_shares(self) -> list[int]:
        return [share for share, owner in enumerate(self._table.tolist()) if owner == self._owner]

    @property
    def division(self) -> Division:
        """Return the division by the present table, which any input may have changed; compute it after a change."""
        table = bytes(self._table)
        if table != self._cached_division.table:
            self._cached_division = self._divide(table)
        return self._cached_division

    def _divide(self, table: bytes) -> Division:
        counts = [table.count(other) for other in self._others]
        # The number of shares guaranteed at present to each other input.
        guaranteed = [self._guaranteed if count else _divide_up(self._guaranteed, _IDLE_DIVISOR) for count in counts]
        free = table.count(0)
        # Other inputs lack these shares to have the guaranteed ones.
        lacking = sum(max(0, least - count) for least, count in zip(guaranteed, counts, strict=True))
        chunks = (self.count - 1) * self.size + self._last_size
        last_shortfall = 0 if table[-1] else self.size - self._last_size  # a free last share may have fewer chunks
        return Division(
            table=table,
            claimable_shares=free - lacking,
            capacity=chunks - sum(guaranteed) * self.size,
            obtainable=max(0, (free - lacking) * self.size - last_shortfall),
            are_scarce=bool(self._others) and free * _SCARCE_DIVISOR < self.count,
        )

    @property
    def free_shares(self) -> list[int]:
        return [share for share, owner in enumerate(self._table.tolist()) if not owner]

    def claim_one(self) -> int | None:
        """Claim the first free share and return it; None if none is obtainable."""
        with self._lock() as is_locked:
            division = self.division
            if not is_locked or division.claimable_shares < 1:
                return None
            share = division.table.index(0)
            self._table[share] = self._owner
            return share

    def claim(self, shares: Sequence[int]) -> bool:
        """Claim all these shares; if one is not obtainable, claim none and return False."""
        with self._lock() as is_locked:
            division = self.division
            are_free = not any(division.table[share] for share in shares)
            if not is_locked or division.claimable_shares < len(shares) or not are_free:
                return False
            for share in shares:
                self._table[share] = self._owner
            return True

    def release(self, share: int) -> None:
        """Make a share free; the caller has checked that none of its chunks is in use."""
        self._table[share] = 0

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock of all inputs; yield False after 5 ms, because its holder may be stopped in a debugger."""
        if self._lock_file < 0:
            yield True
            return
        is_locked = self._try_lock()
        try:
            yield is_locked
        finally:
            if is_locked:
                fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, lay.SUPER_SHARES)

    def _try_lock(self) -> bool:
        """Lock one byte of the file, the first of the table."""
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lay.SUPER_SHARES)
            except OSError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return True
        return False


def share_size(chunks: int) -> int:
    """Return the number of chunks in a share of a slab with this number of chunks."""
    return _divide_up(chunks, lay.SHARES_MAX)


def _divide_up(number: int, divisor: int) -> int:
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
    table = bytes(slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + _divide_up(chunks, size)])
    return [range(found.start() * size, min(found.end() * size, chunks)) for found in _OWNED.finditer(table)]


_OWNED: Final = re.compile(rb"[^\0]+")


def rebuild_table(slab: Slab, spans: Sequence[tuple[int, int]]) -> None:
    """Rewrite the table from the owners of the chunks in use; `spans` are pairs of first chunk and length.

    No other process may use the slab: only the supervisor calls this, before it starts the inputs.
    """
    shares = Shares(slab, owner=0)  # for no input, only to divide the chunks
    table = bytearray(shares.count)
    for chunk, span in spans:
        owner = slab.owner_of(chunk)
        first, last = chunk // shares.size, (chunk + span - 1) // shares.size
        table[first : last + 1] = bytes([owner]) * (last + 1 - first)
    slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + shares.count] = bytes(table)
