"""Spill files: what fenced attempts hold beyond their part of the slab, one file for each attempt.

A file begins with a header page.  Behind it stand blocks: the arrival time of some messages, and the clients' frames of
these messages, byte for byte, in order of arrival.  The policy for timestamps applies to this arrival time when the
messages are fed back, and the header says if the client insists on its timestamps.

Only the stream worker whose row is in the header writes the file while it lives.  Each store to a header is one small
`pwrite()`, which SIGKILL cannot cut in two.

    OPEN ──release──▶ RELEASED ──everything is in lanes──▶ removed
      └──abandoned──▶ removed

The row's release word in the slab decides when an attempt is complete; the state here follows it.  `offset` says how
far a released file is back in the slab.  Behind a death of the worker some messages beyond `offset` may be in lanes
already: `landed` are their numbers, counted from `offset`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bruce_mp.slab.file import Slab

__all__ = ["BLOCK_HEADER", "LONGEST_SLICE", "SpillDirectory", "SpillFile", "delta", "released_in", "spilled_in"]

_MAGIC: Final = b"BRUCESPL"
_VERSION: Final = 1
_HEAD: Final = Struct("<8sIIqII")
"""magic, version, row, creation time of the slab in ms, attempt, 1 if its timestamps are explicit"""
_SEAL: Final = Struct("<QQQ")
"""state (0 open, 1 released), messages, end of the data; written when the attempt is complete"""
_SEAL_AT: Final = 64
_PROGRESS: Final = Struct("<QQQ")
"""offset of the next frame, messages before it, the offset that `landed` counts from (0 = none landed)"""
_PROGRESS_AT: Final = 128
_LANDED_AT: Final = 1024
_DATA_AT: Final = 4096
_BLOCK: Final = Struct("<qQ")
"""arrival time of the messages in ms since 1970, bytes of their frames, which follow"""
_SUFFIX: Final = ".spill"
_MASK: Final = (1 << 64) - 1
_GROUP_AND_OTHERS: Final = 0o077

BLOCK_HEADER: Final = _BLOCK.size
LONGEST_SLICE: Final = 8 * (_DATA_AT - _LANDED_AT)
"""Messages that are fed at a time at the most: the header has a bit for each."""


class SpillFile:
    """The file of one attempt.  Raises OSError when the file system refuses."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        head = os.pread(descriptor, _DATA_AT, 0).ljust(_DATA_AT, b"\0")
        self.row: int
        self.slab_id: int
        self.number: int
        magic, version, self.row, self.slab_id, self.number, explicit = _HEAD.unpack_from(head)
        self.is_explicit = explicit == 1
        self.is_sound = (magic, version) == (_MAGIC, _VERSION)
        self.messages: int
        self.end: int
        state, self.messages, self.end = _SEAL.unpack_from(head, _SEAL_AT)
        self.is_released = state == 1
        self.offset: int
        self.fed: int
        self.offset, self.fed, landed_from = _PROGRESS.unpack_from(head, _PROGRESS_AT)
        bits = int.from_bytes(head[_LANDED_AT:], "little") if landed_from == self.offset else 0
        self.landed = frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)
        self.reserved = os.fstat(descriptor).st_size
        self.arrived_ms = 0
        """When the messages arrived that were read last."""
        self._block_end = _DATA_AT

    @classmethod
    def create(cls, path: Path, slab_id: int, row: int, number: int, *, is_explicit: bool) -> SpillFile:
        """Make the file of an attempt, with mode 0600.  With `is_explicit` its messages keep their timestamps."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        head = bytearray(_DATA_AT)
        _HEAD.pack_into(head, 0, _MAGIC, _VERSION, row, slab_id, number, int(is_explicit))
        _SEAL.pack_into(head, _SEAL_AT, 0, 0, _DATA_AT)
        _PROGRESS.pack_into(head, _PROGRESS_AT, _DATA_AT, 0, 0)
        os.pwrite(descriptor, head, 0)
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path) -> SpillFile:
        """Open a file that is there."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))

    @property
    def remaining(self) -> int:
        """Messages of a released file that are not back in the slab."""
        return max(0, self.messages - self.fed - len(self.landed))

    @property
    def is_exhausted(self) -> bool:
        """Whether everything of a released file is back in the slab."""
        return self.offset >= self.end

    @property
    def size(self) -> int:
        """Bytes of blocks."""
        return self.end - _DATA_AT

    def reserve(self, size: int) -> None:
        """Have the file system set blocks aside for `size` further bytes."""
        os.posix_fallocate(self._descriptor, self.reserved, size)
        self.reserved += size

    def append(self, data: memoryview | bytes, messages: int, arrived_ms: int) -> None:
        """Add whole frames of so many messages, which arrived at this time in ms since 1970."""
        self._store(self.end, _BLOCK.pack(arrived_ms, len(data)))
        at = self.end + _BLOCK.size
        for start in range(0, len(data), _WRITTEN_AT_ONCE):
            part = data[start : start + _WRITTEN_AT_ONCE]
            while len(part):
                written = os.pwrite(self._descriptor, part, at)
                at, part = at + written, part[written:]
        self.end = at
        self.messages += messages

    def seal(self) -> None:
        """Note how much is in the file: the attempt is about to be released."""
        self._store(_SEAL_AT, _SEAL.pack(0, self.messages, self.end))

    def release(self) -> None:
        """Note that the attempt is complete.  The release word of the row says so already."""
        self._store(_SEAL_AT, _SEAL.pack(1, self.messages, self.end))
        self.is_released = True

    def move_to(self, offset: int, fed: int) -> None:
        """Note that everything before `offset`, which are `fed` messages, is back in the slab."""
        self.offset, self.fed, self.landed = offset, fed, frozenset()
        self._store(_PROGRESS_AT, _PROGRESS.pack(offset, fed, 0))

    def note_landed(self, indexes: Collection[int]) -> None:
        """Note which messages behind `offset` a dead worker had put into lanes."""
        self.landed |= frozenset(indexes)
        bits = sum(1 << index for index in self.landed)
        self._store(_LANDED_AT, bits.to_bytes(_DATA_AT - _LANDED_AT, "little"))
        self._store(_PROGRESS_AT, _PROGRESS.pack(self.offset, self.fed, self.offset))

    def read(self, room: memoryview) -> int:
        """Read messages from `offset` on that arrived at `arrived_ms`; return how many bytes came, 0 for damage."""
        if not self._enter_block():
            return 0
        return os.preadv(self._descriptor, [room[: self._block_end - self.offset]], self.offset)

    def _enter_block(self) -> bool:
        """Find the block of `offset`, and pass over its header; False if a header on the way is damaged."""
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
    def is_removed(self) -> bool:
        """Whether the file is closed: nothing of it is needed any more."""
        return self._descriptor < 0

    def close(self) -> None:
        """Close the file and keep it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _store(self, at: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, at)


_WRITTEN_AT_ONCE: Final = 8 << 20


class SpillDirectory:
    """Where the spill files of a slab are.  `slab_id` is the creation time of the slab, in ms."""

    def __init__(self, path: Path, slab_id: int) -> None:
        self.path = path
        self.slab_id = slab_id

    @classmethod
    def of(cls, slab: Slab, path: str | Path) -> SpillDirectory:
        """The directory at `path`, for a slab."""
        return cls(Path(path), slab.signed(lay.SUPER_CREATED_MS))

    def create(self, row: int, number: int, *, is_explicit: bool) -> SpillFile:
        """Make the file of an attempt, and the directory if it is not there.  Raises OSError and SlabError."""
        self._ensure()
        path = self.path / f"{row}.{number}{_SUFFIX}"
        return SpillFile.create(path, self.slab_id, row, number, is_explicit=is_explicit)

    def _ensure(self) -> None:
        """Make the directory, or refuse one that others could write to: its parent may be everybody's."""
        with suppress(FileExistsError):
            self.path.mkdir(0o700)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _GROUP_AND_OTHERS:
            raise SlabError(
                f"{self.path} is not a directory of the daemon's user alone. Remove it, or set "
                "input.streams.spill_dir to a directory in which the daemon may make one."
            )

    def files(self, row: int) -> dict[int, SpillFile]:
        """The files of a row, by the numbers of their attempts, in order."""
        found = {file.number: file for file in self._open_all() if self._is_ours(file, row)}
        return dict(sorted(found.items()))

    def _is_ours(self, file: SpillFile, row: int) -> bool:
        if file.is_sound and (file.slab_id, file.row) == (self.slab_id, row):
            return True
        file.close()
        return False

    def remove_foreign(self) -> int:
        """Remove the files of other slabs; how many messages of complete attempts were in them."""
        lost = 0
        for file in self._open_all():
            if file.is_sound and file.slab_id == self.slab_id:
                file.close()
                continue
            lost += file.remaining if file.is_sound and file.is_released else 0
            file.remove()
        return lost

    def remove(self) -> None:
        """Remove everything: the slab is empty, and about to be removed, too."""
        for file in self._open_all():
            file.remove()
        with suppress(OSError):
            self.path.rmdir()

    def _open_all(self) -> Iterator[SpillFile]:
        try:
            names = sorted(self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for path in names:
            if path.suffix == _SUFFIX and not path.is_symlink():
                with suppress(FileNotFoundError):
                    yield SpillFile.open(path)


def delta(amount: int) -> int:
    """What a transaction has to add to an unsigned word that is to change by `amount`."""
    return amount & _MASK


def spilled_in(slab: Slab, row: int) -> int:
    """Messages of a row that are in spill files, by the books."""
    return (_counter(slab, row, lay.SPILL_IN) - _counter(slab, row, lay.SPILL_OUT)) & _MASK


def released_in(slab: Slab, row: int) -> int:
    """Those of them whose attempts are complete, or about to be."""
    return _counter(slab, row, lay.SPILL_RELEASED)


def _counter(slab: Slab, row: int, counter: int) -> int:
    return slab.longs[(slab.geometry.rows_at + row * lay.ROW_BYTES + lay.ROW_COUNTERS + 8 * counter) >> 3]
