"""Which input may use which part of the slab.

The chunks are cut into *shares* of neighbours.  A table in the superblock says for each share which input has it; 0 is
nobody.  An input takes a share when it runs out of chunks, under a lock of the file that the kernel takes from whoever
dies, and gives it back by one store when nothing is in it and shares are scarce.  A dead input's shares stay with its
row, for its successor.

Half of the slab is guaranteed to the inputs that hold messages, the same part to each; the rest is for any of them.
So an input whose clients wait when the slab is full cannot take the room of one whose messages would be discarded.  An
input that holds nothing keeps an eighth of its part, so that the others may use nearly all of the slab.  When it
receives messages, it takes what the others give back, up to its part.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["Shares", "note_owners"]

_LOCK_TRIES: Final = 50
_LOCK_PAUSE_S: Final = 0.0001
_IDLE_DIVISOR: Final = 8
"""An input that holds nothing keeps one part in so many of what is guaranteed to it."""
_SCARCE: Final = 4
"""Below one part in so many, free shares are scarce."""


class Shares:
    """The shares as input row `owner` sees them; `peers` are the rows of all inputs of the daemon."""

    def __init__(self, slab: Slab, owner: int, peers: Sequence[int] = ()) -> None:
        chunks = slab.geometry.chunks
        self.size = -(-chunks // lay.SHARES_MAX)
        self.count = -(-chunks // self.size)
        self._last_size = chunks - (self.count - 1) * self.size
        self._table = slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + self.count]
        self._owner = owner
        self._others = [peer for peer in peers if peer != owner]
        self._guaranteed = self.count // (2 * (len(self._others) + 1))
        self._lock_file = os.open(slab.path, os.O_RDWR | os.O_CLOEXEC) if self._others else -1
        self._known_obtainable: int | None = None
        """As long as nobody takes or gives a share, where nobody else does."""

    def __del__(self) -> None:
        if getattr(self, "_lock_file", -1) >= 0:
            os.close(self._lock_file)

    def chunks_of(self, share: int) -> range:
        """The chunks of a share; the last one may have fewer than `size`."""
        return range(share * self.size, share * self.size + (self._last_size if share == self.count - 1 else self.size))

    @property
    def own(self) -> list[int]:
        """The shares that this input has."""
        return [share for share, owner in enumerate(self._table.tolist()) if owner == self._owner]

    @property
    def capacity(self) -> int:
        """How many chunks this input can have at the most while the others hold or do not hold messages as now."""
        others = 0
        if self._others:
            table = bytes(self._table)
            others = sum(self._owed(table.count(other)) for other in self._others)
        return (self.count - 1) * self.size + self._last_size - others * self.size

    def _owed(self, has: int) -> int:
        """Return the shares that are kept for another input, which has so many."""
        return self._guaranteed if has else -(-self._guaranteed // _IDLE_DIVISOR)

    @property
    def obtainable(self) -> int:
        """How many chunks this input could take now."""
        if self._known_obtainable is not None:
            return self._known_obtainable
        table = bytes(self._table)
        free = self._takeable(table)
        missing = self.size - self._last_size if free > 0 and not table[-1] else 0
        obtainable = max(0, free * self.size - missing)
        if not self._others:
            self._known_obtainable = obtainable
        return obtainable

    def _takeable(self, table: bytes) -> int:
        have = [table.count(other) for other in self._others]
        return table.count(0) - sum(max(0, self._owed(has) - has) for has in have)

    @property
    def are_scarce(self) -> bool:
        """Whether a share that is not used should be given back."""
        return bool(self._others) and bytes(self._table).count(0) * _SCARCE < self.count

    @property
    def free(self) -> list[int]:
        """The shares that nobody has."""
        return [share for share, owner in enumerate(self._table.tolist()) if not owner]

    def take_one(self) -> int | None:
        """Take the first share that is free; None when none is to be had now."""
        with self._lock() as is_locked:
            table = bytes(self._table)
            if not is_locked or self._takeable(table) < 1:
                return None
            share = table.index(0)
            self._note(share, self._owner)
            return share

    def take(self, shares: Sequence[int]) -> bool:
        """Take all these shares, or none if one is not to be had now."""
        with self._lock() as is_locked:
            table = bytes(self._table)
            if not is_locked or self._takeable(table) < len(shares) or any(table[share] for share in shares):
                return False
            for share in shares:
                self._note(share, self._owner)
            return True

    def give(self, share: int) -> None:
        """Give a share back in which no chunk is in use."""
        self._note(share, 0)

    def _note(self, share: int, owner: int) -> None:
        self._table[share] = owner
        self._known_obtainable = None

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """The lock that all inputs share; False when somebody has it too long, who may be stopped in a debugger."""
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
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lay.SUPER_SHARES)
            except OSError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return True
        return False


def note_owners(slab: Slab, heads: Sequence[tuple[int, int]]) -> None:
    """Write the table anew for chunks in use, pairs of chunk and span, from the owners in their headers.

    Nobody else may be at work: the supervisor does it before it starts the inputs.
    """
    shares = Shares(slab, 0)
    table = bytearray(shares.count)
    for chunk, span in heads:
        owner = slab.view[slab.chunk_at(chunk) + lay.CHUNK_OWNER]
        first, last = chunk // shares.size, (chunk + span - 1) // shares.size
        table[first : last + 1] = bytes([owner]) * (last + 1 - first)
    slab.view[lay.SUPER_SHARES : lay.SUPER_SHARES + shares.count] = bytes(table)
