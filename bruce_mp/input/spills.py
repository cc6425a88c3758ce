"""The spill files of one worker, and the bound on their disk space.

A fenced attempt writes the messages that exceed its part of the slab to a spill file (`slab/spill.py`).  The bound is
for the files of all workers together.  Each worker stores in its row how many bytes its files have reserved.  There is
no lock, so workers that extend files at the same moment may exceed the bound, each by one step.  An urgent block may
exceed the bound, too (see `extend`).
"""

from __future__ import annotations

import os
from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.pipeline.stream_recovery import open_spill_files
from bruce_mp.slab import layout as lay
from bruce_mp.slab.handover_tickets import last_completed_attempt
from bruce_mp.slab.spill import try_to_remove
from bruce_mp.telemetry.books import counter_total

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.input.flush_groups import FlushGroup
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.spill import SpillDirectory, SpillFile

__all__ = ["CompletedSpill", "SpillRoom", "Spills"]

_MIN_STEP: Final = 1 << 20
_MAX_STEP: Final = 16 << 20
"""Bounds in bytes of a *step*, the space that a file reserves at once.

Between the bounds, a step doubles the file, so a large file needs few steps, and a small file wastes little space.
"""
_KEPT_FREE_DIVISOR: Final = 20
"""1/_KEPT_FREE_DIVISOR of the file system stays free for other programs."""


@unique
class SpillRoom(Enum):
    """The result of a reservation: room, or the limit that prevents it."""

    GRANTED = "there is room"
    LIMIT_REACHED = "the spill files have reached input.streams.max_spill_size"
    DISK_FULL = "the file system of the spill files is full"


class CompletedSpill(NamedTuple):
    """The spill file of a completed attempt, and the flush group that counts the outcomes of its messages.

    The flush group is None if the file comes from a dead worker: the client's connection ended with that worker.
    """

    file: SpillFile
    flush_group: FlushGroup | None


class Spills:
    """The spill files of one worker.  `max_bytes` is the bound for all workers; 0 = no spill files."""

    def __init__(self, slab: Slab, row: ProcessRow, row_index: int, directory: SpillDirectory, max_bytes: int) -> None:
        self._slab = slab
        self._row = row
        self._row_index = row_index
        self._directory = directory
        self.max_bytes = max_bytes
        self.completed: deque[CompletedSpill] = deque()
        """The queue of files that `SpillFeed` feeds back into the slab."""
        self.largest_number = 0
        """Largest attempt number that the files and the row had before this worker; 0 = none."""

    def adopt(self) -> None:
        """Take over the files that a dead worker left for this row.

        These files are of completed attempts, except those that `recover_stream_input` could not remove.
        """
        files = open_spill_files(self._slab, self._row, self._row_index, self._directory)
        for file in files.values():
            if file.is_complete:
                self.completed.append(CompletedSpill(file, None))
            else:
                file.close()
        self.largest_number = max(*files, last_completed_attempt(self._slab, self._row_index), 0)

    def add_completed(self, file: SpillFile, flush_group: FlushGroup) -> None:
        """Queue the file of a completed attempt; the file's messages belong to `flush_group`."""
        flush_group.spill_file_count += 1
        self.completed.append(CompletedSpill(file, flush_group))

    def store_completions(self) -> None:
        """Store in the files what their headers lack about completions, before another attempt completes.

        Raise OSError if that fails.
        """
        for completed in self.completed:
            if not completed.file.is_completion_stored:
                completed.file.store_overdue()

    def store_overdue(self) -> None:
        """Store what the headers of files lack, or remove a file without messages, before another file is fed.

        Raise OSError if that fails.
        """
        for completed in [each for each in self.completed if not each.file.is_stored]:
            if completed.file.is_exhausted:
                self.remove_exhausted(completed)
            else:
                completed.file.store_overdue()

    def remove_exhausted(self, completed: CompletedSpill) -> None:
        """Remove a file after all its messages are back in the slab.  Raise OSError if that fails."""
        completed.file.remove()
        self.completed.remove(completed)
        self._release(completed.file)
        if completed.flush_group is not None:
            completed.flush_group.spill_file_count -= 1
        # Only after the removal: until then, `needs_spill_files` must be True. The progress is in no file any more.
        if self._row.counters[lay.SPILL_FED_ATTEMPT] == completed.file.number:
            self._row.counters[lay.SPILL_FED_ATTEMPT] = 0

    @property
    def directory(self) -> Path:
        return self._directory.path

    @property
    def has_room(self) -> bool:
        """Return True if the bound leaves room for another file's first step."""
        return self.reserved_bytes + _MIN_STEP <= self.max_bytes

    def create(self, number: int, *, keeps_timestamps: bool) -> SpillFile:
        """Create the file of attempt `number`.  Raise OSError or SlabError if that fails."""
        file = self._directory.create(self._row_index, number, keeps_timestamps=keeps_timestamps)
        self._row.counters[lay.SPILL_BYTES] += file.reserved_bytes  # of the header
        return file

    def extend(self, file: SpillFile, size: int, *, is_urgent: bool = False) -> SpillRoom:
        """Reserve room for a block with `size` bytes of messages.

        A block is urgent if its messages cannot wait in their connection.  An urgent block may exceed the bound.
        """
        missing_bytes = file.bytes_with(size) - file.reserved_bytes
        if missing_bytes <= 0:
            return SpillRoom.GRANTED
        growth = min(max(file.size, _MIN_STEP), _MAX_STEP)  # `file.size` has the bytes of all blocks
        # The first step includes the header, so that `has_room` need not add it.
        step = max(missing_bytes, growth if file.size else growth - file.reserved_bytes)
        if not is_urgent and self.reserved_bytes + step > self.max_bytes:
            if self.reserved_bytes + missing_bytes > self.max_bytes:
                return SpillRoom.LIMIT_REACHED
            step = missing_bytes
        return self._reserve(file, step)

    def _reserve(self, file: SpillFile, step: int) -> SpillRoom:
        try:
            disk = os.statvfs(self._directory.path)
            free_bytes, total_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            if free_bytes - step < total_bytes / _KEPT_FREE_DIVISOR:
                return SpillRoom.DISK_FULL
            file.reserve(step)
        except OSError:
            return SpillRoom.DISK_FULL
        self._row.counters[lay.SPILL_BYTES] += step
        return SpillRoom.GRANTED

    @property
    def reserved_bytes(self) -> int:
        """Return the number of bytes that the files of all workers have reserved."""
        return counter_total(self._slab, lay.SPILL_BYTES)

    def remove_abandoned(self, file: SpillFile) -> None:
        """Remove the file of an attempt that was discarded, or log that it remains."""
        try_to_remove(file)
        self._release(file)

    def _release(self, file: SpillFile) -> None:
        """Subtract the reserved bytes of a removed file from the worker's counter."""
        # `min` keeps the unsigned counter from wrapping around.
        self._row.counters[lay.SPILL_BYTES] -= min(file.reserved_bytes, self._row.counters[lay.SPILL_BYTES])
