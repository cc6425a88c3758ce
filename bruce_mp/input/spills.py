"""The spill files of one worker: how much they may take, and why one of them has to wait.

The bound is for the files of all workers together.  Each worker publishes what its files take in its row, so that no
lock is needed; workers that grow at the same moment may exceed the bound by a step each.
"""

from __future__ import annotations

import os
from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.spill import BLOCK_HEADER
from bruce_mp.telemetry.books import total

if TYPE_CHECKING:
    from bruce_mp.input.clients import Section
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.spill import SpillDirectory, SpillFile

__all__ = ["Released", "SpillRoom", "Spills"]

_FIRST_STEP: Final = 1 << 20
_LARGEST_STEP: Final = 16 << 20
"""A file grows by as much as it has, within these bounds: few calls for large ones, little waste for small ones."""
_KEPT_FREE: Final = 20
"""One part in so many of the file system is left to others."""


@unique
class SpillRoom(Enum):
    """Whether a spill file may grow, or what it has to wait for."""

    YES = "there is room"
    BOUND = "the spill files have all that input.streams.max_spill_size allows"
    DISK = "the file system of the spill files is full"


class Released(NamedTuple):
    """A file whose attempt is complete, and the section that its messages count for; None: of a dead worker."""

    file: SpillFile
    section: Section | None


class Spills:
    """The spill files of the worker with a row.  `most` is the bound in bytes; 0 means that nothing is spilled."""

    def __init__(self, slab: Slab, row: Row, index: int, directory: SpillDirectory, most: int) -> None:
        self._slab = slab
        self._row = row
        self._index = index
        self._directory = directory
        self.most = most
        self.released: deque[Released] = deque()
        """What is on its way back into the slab."""
        self.last_number = 0
        """The greatest number of an attempt that has a file."""

    def adopt(self) -> None:
        """Take over the files that a dead worker of this row left; all of them are released."""
        files = self._directory.files(self._index)
        self.released.extend(Released(file, None) for file in files.values())
        self.last_number = max(files, default=0)
        self._row.counters[lay.SPILL_BYTES] = sum(file.reserved for file in files.values())

    @property
    def can_spill(self) -> bool:
        """Whether spill files may be made at all."""
        return self.most > 0

    @property
    def has_room(self) -> bool:
        """Report if the bound leaves room for the first block of another file."""
        return self.taken + _FIRST_STEP <= self.most

    def create(self, number: int, *, is_explicit: bool) -> SpillFile:
        """Make the file of an attempt.  Raises OSError and SlabError."""
        return self._directory.create(self._index, number, is_explicit=is_explicit)

    def extend(self, file: SpillFile, size: int, *, is_urgent: bool = False) -> SpillRoom:
        """Reserve room for a block of `size` bytes; an urgent need may exceed the bound, which is about megabytes."""
        missing = file.end + BLOCK_HEADER + size - file.reserved
        if missing <= 0:
            return SpillRoom.YES
        step = max(missing, min(max(file.size, _FIRST_STEP), _LARGEST_STEP))
        if not is_urgent and self.taken + step > self.most:
            if self.taken + missing > self.most:
                return SpillRoom.BOUND
            step = missing
        return self._reserve(file, step)

    def _reserve(self, file: SpillFile, step: int) -> SpillRoom:
        found = os.statvfs(self._directory.path)
        if (found.f_bavail * found.f_frsize - step) * _KEPT_FREE < found.f_blocks * found.f_frsize:
            return SpillRoom.DISK
        try:
            file.reserve(step)
        except OSError:
            return SpillRoom.DISK
        self._row.counters[lay.SPILL_BYTES] += step
        return SpillRoom.YES

    @property
    def taken(self) -> int:
        """Bytes that the files of all workers have."""
        return total(self._slab, lay.SPILL_BYTES)

    def remove(self, file: SpillFile) -> None:
        """Remove a file of which nothing is needed any more."""
        self._row.counters[lay.SPILL_BYTES] -= min(file.reserved, self._row.counters[lay.SPILL_BYTES])
        file.remove()
