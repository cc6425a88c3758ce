"""Spill files: messages of fenced attempts that exceed the part of the slab for attempts.

A *fenced attempt* is a group of messages that are delivered together or not at all.  Each attempt has its own spill
file.  A file consists of a header page and blocks.  A block consists of an arrival time and the messages that arrived
at that time, in order and as the client sent them.

A file has one writer, a stream worker (a process for stream connections).  The header names the worker's process row.
Each store to the header is one small `pwrite()`, which SIGKILL does not interrupt.

    OPEN ──completed──▶ COMPLETE ──all messages are in the slab──▶ removed
      └──abandoned──▶ removed

An attempt is complete once `ROW_COMPLETING` of the worker's row has its number.  Then the worker marks the file
complete, and *feeds* the messages to the slab, as room becomes free.  The timestamp policy uses the arrival time of the
block.  The header tells if only the policy "arrival" may replace the timestamps of clients.

A worker can go on if a disk is full or fails: the row has what the header lacks, the completion of the last attempt
and the progress of the file that was fed last.  Nothing replaces these values in the row before the header has them.
Only `fed_ahead` (below) is not in the row: if a worker ends before the disk takes it, messages are doubled.

The header also has the `offset` before which all messages have been fed.  Some later messages may have been fed as
well, if an earlier message waits for its topic, or if a worker died before it stored its progress.  `fed_ahead` has
the indexes of these later messages, counted from the message at `offset`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptRegistry
from bruce_mp.slab.handover_tickets import last_completed_attempt
from bruce_mp.slab.private_directory import (
    create_private_directory,
    is_foreign,
    remove_private_directory,
    store_directory,
    stored_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from bruce_mp.slab.file import Slab

__all__ = [
    "MAX_SLICE_MESSAGES",
    "SPILL_SETTING",
    "SpillDirectory",
    "SpillFile",
    "completed_message_count",
    "needs_spill_files",
    "spilled_message_count",
    "try_to_remove",
    "wrapping_delta",
]

log = logging.getLogger(__name__)
_MAGIC: Final = b"BRUCESPL"
_VERSION: Final = 1
_HEADER: Final = Struct("<8sIIqII")
"""magic, version, row, creation time of the slab in ms, attempt, 1 if only "arrival" may replace timestamps"""
_SEAL: Final = Struct("<QQQ")
"""state (0 open, 1 complete), number of messages, offset of the blocks' end; written by `seal` and `complete`"""
_SEAL_AT: Final = 64
_PROGRESS: Final = Struct("<QQQ")
"""offset of the next message to feed, number of messages before it, offset from which `fed_ahead` counts (0 = none)"""
_PROGRESS_AT: Final = 128
_FED_AHEAD_AT: Final = 1024
"""Offset of the bits of `fed_ahead`, one for each index.  They fill the rest of the header page."""
_BLOCKS_AT: Final = 4096
_BLOCK: Final = Struct("<qQ")
"""arrival time of the messages in ms since 1970, bytes of the messages, which follow"""
_SUFFIX: Final = ".spill"
SPILL_SETTING: Final = "input.streams.spill_dir"
_MAX_UINT64: Final = (1 << 64) - 1

MAX_SLICE_MESSAGES: Final = 8 * (_BLOCKS_AT - _FED_AHEAD_AT)
"""Maximum number of messages that a worker feeds before it stores its progress: the header has as many bits."""


class SpillFile:
    """The spill file of one attempt.  Methods may raise OSError, except `complete`, `advance_to` and `store_fed_ahead`.

    These three keep what they cannot store for `store_overdue`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        header = os.pread(descriptor, _BLOCKS_AT, 0).ljust(_BLOCKS_AT, b"\0")
        self.row: int
        self.slab_id: int
        """Creation time of the slab in ms since 1970."""
        self.number: int
        """Number of the attempt."""
        magic, version, self.row, self.slab_id, self.number, keeps_timestamps = _HEADER.unpack_from(header)
        self.keeps_timestamps = keeps_timestamps == 1
        self.is_valid = (magic, version) == (_MAGIC, _VERSION)
        self.message_count: int
        """Number of messages in all blocks."""
        self.end: int
        """Offset of the end of the blocks."""
        state, self.message_count, self.end = _SEAL.unpack_from(header, _SEAL_AT)
        self.is_complete = state == 1
        self.offset: int
        """Offset of the next message to feed."""
        self.fed_count: int
        """Number of messages before `offset`."""
        self.offset, self.fed_count, bits_offset = _PROGRESS.unpack_from(header, _PROGRESS_AT)
        # The bits are outdated if their indexes count from another offset.
        bits = int.from_bytes(header[_FED_AHEAD_AT:], "little") if bits_offset == self.offset else 0
        self.fed_ahead = frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)
        self.reserved_bytes = os.fstat(descriptor).st_size
        """Bytes of the file that the file system has allocated."""
        self.arrived_ms = 0
        """Arrival time of the messages of the last read, in ms since 1970."""
        self._block_end = _BLOCKS_AT
        """Offset of the end of the block that `read` reads."""
        self._overdue: dict[int, bytes] = {}
        """Bytes by offset that the header lacks."""

    @classmethod
    def create(cls, path: Path, slab_id: int, row: int, number: int, *, keeps_timestamps: bool) -> SpillFile:
        """Create the file of attempt `number`.

        If `keeps_timestamps` is True, only the timestamp policy "arrival" may replace the timestamps of its messages.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        header = bytearray(_BLOCKS_AT)
        _HEADER.pack_into(header, 0, _MAGIC, _VERSION, row, slab_id, number, int(keeps_timestamps))
        _SEAL.pack_into(header, _SEAL_AT, 0, 0, _BLOCKS_AT)
        _PROGRESS.pack_into(header, _PROGRESS_AT, _BLOCKS_AT, 0, 0)
        try:
            os.posix_fallocate(descriptor, 0, _BLOCKS_AT)
            os.pwrite(descriptor, header, 0)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path) -> SpillFile:
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))

    @property
    def remaining_count(self) -> int:
        """Return the number of messages of a complete file that have not been fed."""
        return max(0, self.message_count - self.fed_count - len(self.fed_ahead))

    @property
    def lost_count(self) -> int:
        """Return the number of messages that are lost if the slab of the file is."""
        return self.remaining_count if self.is_valid and self.is_complete else 0

    @property
    def is_exhausted(self) -> bool:
        """Return True if all messages of a complete file have been fed."""
        return self.offset >= self.end

    @property
    def size(self) -> int:
        """Return the size of all blocks, with their headers, in bytes."""
        return self.end - _BLOCKS_AT

    def bytes_with(self, size: int) -> int:
        """Return the size of the file with a further block of `size` bytes of messages."""
        return self.end + _BLOCK.size + size

    def reserve(self, size: int) -> None:
        """Allocate `size` further bytes in the file system."""
        os.posix_fallocate(self._descriptor, self.reserved_bytes, size)
        self.reserved_bytes += size

    def append(self, data: memoryview | bytes, message_count: int, arrived_ms: int) -> None:
        """Append a block of whole messages, which arrived at `arrived_ms` (ms since 1970)."""
        self._store(self.end, _BLOCK.pack(arrived_ms, len(data)))
        at = self.end + _BLOCK.size
        for start in range(0, len(data), _MAX_WRITE_BYTES):
            part = data[start : start + _MAX_WRITE_BYTES]
            while len(part):
                written = os.pwrite(self._descriptor, part, at)
                at, part = at + written, part[written:]
        self.end = at
        self.message_count += message_count

    def seal(self) -> None:
        """Store the number of messages and the end of the blocks, before the completion of the attempt."""
        self._store(_SEAL_AT, _SEAL.pack(0, self.message_count, self.end))

    def complete(self) -> None:
        """Mark the file complete, after the store to `ROW_COMPLETING`."""
        self.is_complete = True
        self._try_to_store({_SEAL_AT: _SEAL.pack(1, self.message_count, self.end)})

    def advance_to(self, offset: int, fed_count: int) -> None:
        """Store that the `fed_count` messages before `offset` have been fed."""
        self.offset, self.fed_count, self.fed_ahead = offset, fed_count, frozenset()
        self._try_to_store({_PROGRESS_AT: _PROGRESS.pack(offset, fed_count, 0)})

    def store_fed_ahead(self, indexes: Collection[int]) -> None:
        """Add the indexes, counted from `offset`, of messages that were fed before an earlier message."""
        self.fed_ahead |= frozenset(indexes)
        bits = sum(1 << index for index in self.fed_ahead)
        progress = _PROGRESS.pack(self.offset, self.fed_count, self.offset)
        self._try_to_store({_FED_AHEAD_AT: bits.to_bytes(_BLOCKS_AT - _FED_AHEAD_AT, "little"), _PROGRESS_AT: progress})

    @property
    def is_stored(self) -> bool:
        """Return True if the header lacks nothing."""
        return not self._overdue

    @property
    def is_completion_stored(self) -> bool:
        return _SEAL_AT not in self._overdue

    def store_overdue(self) -> None:
        """Store what the header lacks."""
        for at, data in list(self._overdue.items()):
            self._store(at, data)
            del self._overdue[at]

    def _try_to_store(self, stores: dict[int, bytes]) -> None:
        self._overdue |= stores
        with suppress(OSError):
            self.store_overdue()

    def read(self, buffer: memoryview) -> int:
        """Read the bytes at `offset`, at most to the end of the block, into `buffer`, and set `arrived_ms`.

        Return the number of bytes, 0 for a damaged block.
        """
        if not self._enter_block():
            return 0
        return os.preadv(self._descriptor, [buffer[: self._block_end - self.offset]], self.offset)

    def _enter_block(self) -> bool:
        """Find the block that contains `offset`; if `offset` is at its header, advance it to the first message.

        Return False at a damaged header.
        """
        while self._block_end <= self.offset < self.end:
            header = os.pread(self._descriptor, _BLOCK.size, self._block_end).ljust(_BLOCK.size, b"\0")
            data_at = self._block_end + _BLOCK.size
            arrived_ms, size = _BLOCK.unpack(header)
            if not 0 < size <= self.end - data_at:
                return False
            self.arrived_ms, self._block_end = arrived_ms, data_at + size
            self.offset = max(self.offset, data_at)
        return True

    def remove(self) -> None:
        """Remove and close the file."""
        self.path.unlink(missing_ok=True)
        self.close()

    @property
    def is_closed(self) -> bool:
        return self._descriptor < 0

    def close(self) -> None:
        """Close the file without removing it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _store(self, at: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, at)


_MAX_WRITE_BYTES: Final = 8 << 20
"""Maximum size of one write, far below Linux' limit of 2 GiB."""


class SpillDirectory:
    """The directory of the spill files of the slab at `slab_path`; `slab_id` is the slab's creation time."""

    def __init__(self, path: Path, slab_id: int, slab_path: Path) -> None:
        self.path = path
        self._slab_path = slab_path
        self.slab_id = slab_id
        self.registry = AttemptRegistry(path, slab_id, self.ensure)

    @classmethod
    def for_slab(cls, slab: Slab, path: str | Path) -> SpillDirectory:
        return cls(Path(path), slab.read_signed(lay.SUPER_CREATED_MS), slab.path)

    def create(self, row: int, number: int, *, keeps_timestamps: bool) -> SpillFile:
        """Create the file of an attempt, and the directory if it is missing.  Raises OSError and SlabError."""
        self.ensure()
        path = self.path / f"{row}.{number}{_SUFFIX}"
        try:
            return SpillFile.create(path, self.slab_id, row, number, keeps_timestamps=keeps_timestamps)
        except FileExistsError:
            self._remove_stale(path)
            return SpillFile.create(path, self.slab_id, row, number, keeps_timestamps=keeps_timestamps)

    def ensure(self) -> None:
        """Create the directory if it is missing.  Raises OSError and SlabError."""
        create_private_directory(self.path, SPILL_SETTING, self._slab_path)

    def files(self, row: int, *, are_needed: bool = True) -> dict[int, SpillFile]:
        """Return the files of a row by attempt number, in ascending order; the caller closes them.

        Raise SlabError if the daemon may not read them.  If `are_needed` is False, return those that it may read.
        """
        found: dict[int, SpillFile] = {}
        for file in self._open_all(self._fail if are_needed else _ignore):
            if file.is_valid and (file.slab_id, file.row) == (self.slab_id, row):
                found[file.number] = file
            else:
                file.close()
        return dict(sorted(found.items()))

    def _fail(self, error: OSError) -> None:
        """Raise an error, because the caller would discard messages that a later worker may find in the files."""
        if not isinstance(error, PermissionError):
            raise error
        raise SlabError(
            f"The spill files in {self.path}, which may hold messages, cannot be read: {error.strerror}. Give the "
            f"daemon's user read and write permission for {error.filename or self.path}. Then start or upgrade the "
            "daemon again."
        ) from error

    def check(self, slab: Slab) -> None:
        """Raise SlabError if a new worker could not find or read files that it would need."""
        earlier = stored_directory(slab, lay.SUPER_SPILL_PATH)
        has_moved = earlier not in {b"", bytes(self.path)}
        for row in lay.STREAM_ROWS:
            files = self.files(row) if needs_spill_files(slab, row) else {}
            for file in files.values():
                file.close()
            if has_moved and not files and spilled_message_count(slab, row):
                raise self._moved(Path(os.fsdecode(earlier)))

    def _moved(self, earlier: Path) -> SlabError:
        return SlabError(
            f"The slab {self._slab_path} has messages in spill files in {earlier}, but {SPILL_SETTING} now leads to "
            f"{self.path}. Set {SPILL_SETTING} to {earlier.parent}, or move {earlier} to {self.path}. If the files are "
            f"gone, start the daemon once with {SPILL_SETTING} = {earlier.parent}: it then discards their messages."
        )

    def record(self, slab: Slab) -> None:
        """Store the directory in the slab, after `check`."""
        store_directory(slab, lay.SUPER_SPILL_PATH, bytes(self.path))

    def remove_outdated(self) -> int:
        """Remove files of earlier slabs; return the number of lost messages: unfed ones of complete attempts.

        Log the files that cannot be read or removed: a later start removes them.
        """
        lost = 0
        for file in self._open_all(_warn):
            if file.is_valid and file.slab_id == self.slab_id:
                file.close()
            else:
                lost += file.lost_count
                try_to_remove(file)
        return lost

    def remove(self, slab: Slab) -> None:
        """Remove all spill files, and the directory if it is then empty, before the supervisor removes an empty slab.

        The registry of unique attempts stays in the directory, because clients may inquire about attempts later.
        """
        if is_foreign(self.path, self._slab_path):
            return
        for file in self._open_all(_ignore):  # without messages, the files do no harm
            try_to_remove(file, _ignore)
        with suppress(OSError, SlabError):
            if self.registry.exists:
                self.registry.end_slab(lambda row: last_completed_attempt(slab, row))
        with suppress(OSError):
            remove_private_directory(self.path)

    def _open_all(self, on_error: Callable[[OSError], None]) -> Iterator[SpillFile]:
        """Open one spill file after the other; call `on_error` for those that cannot be opened."""
        try:
            paths = sorted(path for path in self.path.iterdir() if path.suffix == _SUFFIX)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            on_error(error)
            return
        for path in paths:
            try:
                file = None if path.is_symlink() else SpillFile.open(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                on_error(error)
                continue
            if file is not None:
                yield file

    def _remove_stale(self, path: Path) -> None:
        """Remove a file of another slab, which no start could remove, or a file whose header a kill prevented."""
        file = SpillFile.open(path)
        if file.is_valid and file.slab_id == self.slab_id:
            file.close()
            return
        if file.lost_count:
            log.error(
                "The spill file %s belongs to a slab that no longer exists: %d messages of a complete fenced attempt "
                "are lost.",
                path,
                file.lost_count,
            )
        file.remove()


def try_to_remove(file: SpillFile, on_error: Callable[[OSError], None] | None = None) -> None:
    """Remove a file without messages, or close it and call `on_error`; by default, log that it remains."""
    try:
        file.remove()
    except OSError as error:
        file.close()
        (on_error or _warn)(error)


def _warn(error: OSError) -> None:
    """Log that a file, or the directory, cannot be read or removed."""
    log.warning(
        "Spill files without messages may remain, because %s cannot be read or removed: %s. Give the daemon's user "
        "read and write permission for it, and restart the daemon.",
        error.filename,
        error.strerror,
        extra={"about": str(error.filename)},  # see telemetry/logs.py
    )


def _ignore(_: OSError) -> None:
    pass


def wrapping_delta(amount: int) -> int:
    """Return the unsigned addend that changes a 64-bit counter by `amount`, which may be negative."""
    return amount & _MAX_UINT64


def spilled_message_count(slab: Slab, row: int) -> int:
    """Return the number of messages in the spill files of a row, according to the row's counters."""
    return (_counter(slab, row, lay.SPILL_IN) - _counter(slab, row, lay.SPILL_OUT)) & _MAX_UINT64


def needs_spill_files(slab: Slab, row: int) -> bool:
    """Return True if the spill files of a row may hold messages, or lack progress that the row's counters have."""
    counters = lay.SPILL_COMPLETED, lay.SPILL_FED_ATTEMPT, lay.SPILL_FEEDING
    return spilled_message_count(slab, row) > 0 or any(_counter(slab, row, counter) for counter in counters)


def completed_message_count(slab: Slab, row: int) -> int:
    """Return the number of messages in the complete spill files of a row, according to the row's counters."""
    return _counter(slab, row, lay.SPILL_COMPLETED)


def _counter(slab: Slab, row: int, counter: int) -> int:
    return slab.longs[(slab.row_at(row) + lay.ROW_COUNTERS + 8 * counter) >> 3]
