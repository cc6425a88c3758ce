"""Spill files: the messages of fenced attempts beyond their part of the slab, one file for each attempt.

A file consists of a header page and blocks.  A block consists of an arrival time and the frames of some messages, as
the client sent them, in order of arrival.  When a worker feeds the messages into lanes, the timestamp policy uses this
arrival time.  The header states if the daemon must keep the client's timestamps.

A file has one writer, the stream worker of the row in the header.  Each store to the header is one small `pwrite()`,
which SIGKILL does not interrupt.

    OPEN ──completed──▶ COMPLETE ──everything is in lanes──▶ removed
      └──abandoned──▶ removed

An attempt is complete once `ROW_COMPLETING` of the worker's row names it; then the worker marks the file complete, and
*feeds* its messages back into lanes.  Those before `offset` are back in the slab.  After the death of a worker, some
messages behind `offset` may be in lanes as well: `landed` has their indexes, counted from `offset`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptRegistry
from bruce_mp.slab.private_directory import create_private_directory, is_foreign, remove_private_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bruce_mp.slab.file import Slab

__all__ = [
    "BLOCK_HEADER",
    "MAX_SLICE_MESSAGES",
    "SPILL_SETTING",
    "SpillDirectory",
    "SpillFile",
    "completed_messages",
    "spilled_messages",
    "wrapping_delta",
]

_MAGIC: Final = b"BRUCESPL"
_VERSION: Final = 1
_HEADER: Final = Struct("<8sIIqII")
"""magic, version, row, creation time of the slab in ms, attempt, 1 if clamping must not replace timestamps"""
_SEAL: Final = Struct("<QQQ")
"""state (0 open, 1 complete), messages, end of the data; written when the attempt is complete"""
_SEAL_AT: Final = 64
_PROGRESS: Final = Struct("<QQQ")
"""offset of the next frame, messages before it, offset from which `landed` counts (0 = none landed)"""
_PROGRESS_AT: Final = 128
_LANDED_AT: Final = 1024
_DATA_AT: Final = 4096
"""Offsets of seal, progress, bits of landed messages, and blocks: the first page is all but the blocks."""
_BLOCK: Final = Struct("<qQ")
"""arrival time of the messages in ms since 1970, bytes of their frames, which follow"""
_SUFFIX: Final = ".spill"
SPILL_SETTING: Final = "input.streams.spill_dir"
_MASK: Final = (1 << 64) - 1

BLOCK_HEADER: Final = _BLOCK.size
MAX_SLICE_MESSAGES: Final = 8 * (_DATA_AT - _LANDED_AT)
"""Maximum number of messages that a worker feeds at once: the header has a bit for each."""


class SpillFile:
    """The file of one attempt.  Its methods raise OSError as the file system does."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        header = os.pread(descriptor, _DATA_AT, 0).ljust(_DATA_AT, b"\0")
        self.row: int
        self.slab_id: int
        self.number: int
        magic, version, self.row, self.slab_id, self.number, keeps = _HEADER.unpack_from(header)
        self.keeps_timestamps = keeps == 1
        self.is_valid = (magic, version) == (_MAGIC, _VERSION)
        self.messages: int
        self.end: int
        """Offset of the end of the data."""
        state, self.messages, self.end = _SEAL.unpack_from(header, _SEAL_AT)
        self.is_complete = state == 1
        self.offset: int
        """Offset of the next frame to feed."""
        self.fed: int
        """Number of messages before `offset`."""
        self.offset, self.fed, landed_from = _PROGRESS.unpack_from(header, _PROGRESS_AT)
        bits = int.from_bytes(header[_LANDED_AT:], "little") if landed_from == self.offset else 0
        self.landed = frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)
        self.reserved = os.fstat(descriptor).st_size
        """Bytes of the file that the file system has allocated."""
        self.arrived_ms = 0
        """Arrival time of the messages of the last read."""
        self._block_end = _DATA_AT

    @classmethod
    def create(cls, path: Path, slab_id: int, row: int, number: int, *, keeps_timestamps: bool) -> SpillFile:
        """Create the file of an attempt, with mode 0600; for `keeps_timestamps` see `Lanes.ingest`.

        On a full disk no file remains.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        header = bytearray(_DATA_AT)
        _HEADER.pack_into(header, 0, _MAGIC, _VERSION, row, slab_id, number, int(keeps_timestamps))
        _SEAL.pack_into(header, _SEAL_AT, 0, 0, _DATA_AT)
        _PROGRESS.pack_into(header, _PROGRESS_AT, _DATA_AT, 0, 0)
        try:
            os.posix_fallocate(descriptor, 0, _DATA_AT)
            os.pwrite(descriptor, header, 0)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path) -> SpillFile:
        """Open an existing file."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))

    @property
    def remaining(self) -> int:
        """Return the number of messages of a complete file that are not back in the slab."""
        return max(0, self.messages - self.fed - len(self.landed))

    @property
    def is_exhausted(self) -> bool:
        """Return True if all messages of a complete file are back in the slab."""
        return self.offset >= self.end

    @property
    def size(self) -> int:
        """Return the bytes of all blocks, with their headers."""
        return self.end - _DATA_AT

    def reserve(self, size: int) -> None:
        """Allocate `size` further bytes in the file system."""
        os.posix_fallocate(self._descriptor, self.reserved, size)
        self.reserved += size

    def append(self, data: memoryview | bytes, messages: int, arrived_ms: int) -> None:
        """Append a block of whole frames.  `arrived_ms` is their arrival time in ms since 1970."""
        self._store(self.end, _BLOCK.pack(arrived_ms, len(data)))
        at = self.end + _BLOCK.size
        for start in range(0, len(data), _MAX_WRITE_BYTES):
            part = data[start : start + _MAX_WRITE_BYTES]
            while len(part):
                written = os.pwrite(self._descriptor, part, at)
                at, part = at + written, part[written:]
        self.end = at
        self.messages += messages

    def seal(self) -> None:
        """Store the number of messages and the end of the data, before the attempt is completed."""
        self._store(_SEAL_AT, _SEAL.pack(0, self.messages, self.end))

    def complete(self) -> None:
        """Store that the attempt is complete, after the store to `ROW_COMPLETING`."""
        self._store(_SEAL_AT, _SEAL.pack(1, self.messages, self.end))
        self.is_complete = True

    def advance_to(self, offset: int, fed: int) -> None:
        """Store that the `fed` messages before `offset` are back in the slab."""
        self.offset, self.fed, self.landed = offset, fed, frozenset()
        self._store(_PROGRESS_AT, _PROGRESS.pack(offset, fed, 0))

    def store_landed(self, indexes: Collection[int]) -> None:
        """Store the indexes of messages after `offset` that are in lanes already."""
        self.landed |= frozenset(indexes)
        bits = sum(1 << index for index in self.landed)
        self._store(_LANDED_AT, bits.to_bytes(_DATA_AT - _LANDED_AT, "little"))
        self._store(_PROGRESS_AT, _PROGRESS.pack(self.offset, self.fed, self.offset))

    def read(self, room: memoryview) -> int:
        """Read frames of one block from `offset` on, and set `arrived_ms`; return the bytes read, 0 if damaged."""
        if not self._enter_block():
            return 0
        return os.preadv(self._descriptor, [room[: self._block_end - self.offset]], self.offset)

    def _enter_block(self) -> bool:
        """Find the block of `offset`, and skip its header.  Return False if a block header is damaged."""
        while self._block_end <= self.offset < self.end:
            header = os.pread(self._descriptor, _BLOCK.size, self._block_end).ljust(_BLOCK.size, b"\0")
            begin = self._block_end + _BLOCK.size
            arrived_ms, size = _BLOCK.unpack(header)
            if not 0 < size <= self.end - begin:
                return False
            self.arrived_ms, self._block_end = arrived_ms, begin + size
            self.offset = max(self.offset, begin)
        return True

    def remove(self) -> None:
        """Remove and close the file."""
        self.path.unlink(missing_ok=True)
        self.close()

    @property
    def is_closed(self) -> bool:
        """Return True once the file is closed."""
        return self._descriptor < 0

    def close(self) -> None:
        """Close the file without removing it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _store(self, at: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, at)


_MAX_WRITE_BYTES: Final = 8 << 20
"""Bytes of one write, far below Linux' limit of 2 GiB."""


class SpillDirectory:
    """The directory of the spill files of the slab at `slab_path`.  `slab_id` is its creation time in ms."""

    def __init__(self, path: Path, slab_id: int, slab_path: Path) -> None:
        self.path = path
        self._slab_path = slab_path
        self.slab_id = slab_id
        self.registry = AttemptRegistry(path, slab_id, self.ensure)

    @classmethod
    def for_slab(cls, slab: Slab, path: str | Path) -> SpillDirectory:
        """Return the directory at `path` for a slab."""
        return cls(Path(path), slab.read_signed(lay.SUPER_CREATED_MS), slab.path)

    def create(self, row: int, number: int, *, keeps_timestamps: bool) -> SpillFile:
        """Create the file of an attempt, and the directory if it is missing.  Raises OSError and SlabError."""
        self.ensure()
        path = self.path / f"{row}.{number}{_SUFFIX}"
        return SpillFile.create(path, self.slab_id, row, number, keeps_timestamps=keeps_timestamps)

    def ensure(self) -> None:
        """Create the directory if it is missing.  Raises OSError and SlabError."""
        create_private_directory(self.path, SPILL_SETTING, self._slab_path)

    def files(self, row: int) -> dict[int, SpillFile]:
        """Return the files of a row by attempt number, in ascending order."""
        found: dict[int, SpillFile] = {}
        for file in self._open_all():
            if file.is_valid and (file.slab_id, file.row) == (self.slab_id, row):
                found[file.number] = file
            else:
                file.close()
        return dict(sorted(found.items()))

    def remove_foreign(self) -> int:
        """Remove the files of other slabs, and return the number of messages of complete attempts in them."""
        lost = 0
        for file in self._open_all():
            if file.is_valid and file.slab_id == self.slab_id:
                file.close()
                continue
            lost += file.remaining if file.is_valid and file.is_complete else 0
            file.remove()
        return lost

    def remove(self) -> None:
        """Remove all files and the directory, for an empty slab that is about to be removed.

        The registry of attempts stays, because clients may ask for its attempts later.
        """
        if is_foreign(self.path, self._slab_path):
            return
        for file in self._open_all():
            file.remove()
        with suppress(OSError, SlabError):
            if self.registry.exists:
                self.registry.end_slab()
        with suppress(OSError):
            remove_private_directory(self.path)

    def _open_all(self) -> Iterator[SpillFile]:
        try:
            names = sorted(self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for path in names:
            if path.suffix == _SUFFIX and not path.is_symlink():
                with suppress(FileNotFoundError):
                    yield SpillFile.open(path)


def wrapping_delta(amount: int) -> int:
    """Return the unsigned addend that changes a 64-bit counter by `amount`, which may be negative."""
    return amount & _MASK


def spilled_messages(slab: Slab, row: int) -> int:
    """Return the number of a row's messages in spill files, by its counters."""
    return (_counter(slab, row, lay.SPILL_IN) - _counter(slab, row, lay.SPILL_OUT)) & _MASK


def completed_messages(slab: Slab, row: int) -> int:
    """Return the number of a row's messages in spill files of complete attempts, by its counters."""
    return _counter(slab, row, lay.SPILL_COMPLETED)


def _counter(slab: Slab, row: int, counter: int) -> int:
    return slab.longs[(slab.row_at(row) + lay.ROW_COUNTERS + 8 * counter) >> 3]
