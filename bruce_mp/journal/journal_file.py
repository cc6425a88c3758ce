"""The journal file: copies of held runs on disk, from which a new slab is filled after a power failure.

The file is a sequence of entries, each with a checksum:

    BEGIN     a daemon begins to use a slab: creation time of the slab, boot id of the machine
    RUN       a closed run: its key in the slab, its topic, its records as they are in the slab
    SETTLED   keys of runs that no longer hold a message
    CLEAN     the daemon ended, and wrote the slab to its file before

`sync` makes the entries before it durable.  After a power failure, any part of later entries may be missing.  A reader
skips bytes without a valid checksum up to the next entry.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum, unique
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Journal", "JournalContent", "JournaledRun", "RunKey", "boot_id", "read_journal", "sync_directory"]

_MAGIC: Final = b"BRJL"
_ENTRY: Final = Struct("<4sIIII")
"""magic, kind, length of the body, checksum of the body, checksum of these fields"""
_CHECKED: Final = 16
_BEGIN: Final = Struct("<q36s")
_RUN: Final = Struct("<IIIIH")
"""chunk, generation, offset, records, length of the topic; topic and records follow"""
_KEY: Final = Struct("<III")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_WRITE_BYTES: Final = 4 << 20
"""Size of buffered entries at which they are written."""


@unique
class _Kind(IntEnum):
    BEGIN = 1
    RUN = 2
    SETTLED = 3
    CLEAN = 4


class RunKey(NamedTuple):
    """The identity of a run in its slab: a chunk has another generation after its reuse."""

    chunk: int
    generation: int
    offset: int


class JournaledRun(NamedTuple):
    """A run's records as they are in the slab."""

    topic: bytes
    records: int
    data: bytes | memoryview


def boot_id() -> bytes:
    """Return the kernel's random id of the present boot."""
    return _BOOT_ID.read_bytes()[:36]


class Journal:
    """A journal file that is being written.  Its methods raise OSError as the file system does."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._pending = bytearray()
        self.unsynced = 0
        """Bytes written since the last `sync`."""
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Create an empty journal with mode 0600, in place of an older file."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path.unlink(missing_ok=True)
        return cls(path, os.open(path, flags, 0o600))

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal, to append entries."""
        return cls(path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW))

    def add_begin(self, slab_id: int, boot: bytes) -> None:
        """Add the beginning of a daemon's work on a slab; `slab_id` is the slab's creation time in ms."""
        self._add(_Kind.BEGIN, _BEGIN.pack(slab_id, boot))

    def add_run(self, key: RunKey, run: JournaledRun) -> None:
        """Add a run."""
        self._add(_Kind.RUN, _RUN.pack(*key, run.records, len(run.topic)) + run.topic + bytes(run.data))

    def add_settled(self, keys: Iterable[RunKey]) -> None:
        """Add the keys of runs that no longer hold a message."""
        body = b"".join([_KEY.pack(*key) for key in keys])
        if body:
            self._add(_Kind.SETTLED, body)

    def add_clean(self) -> None:
        """Add the clean end of a daemon."""
        self._add(_Kind.CLEAN, b"")

    def _add(self, kind: _Kind, body: bytes) -> None:
        header = _ENTRY.pack(_MAGIC, kind, len(body), crc32(body), 0)[:_CHECKED]
        self._pending += header + crc32(header).to_bytes(4, "little")
        self._pending += body
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        rest = memoryview(self._pending)
        while rest:
            written = os.write(self._descriptor, rest)
            self.size, rest = self.size + written, rest[written:]
            self.unsynced += written
        self._pending = bytearray()

    def sync(self) -> None:
        """Write all entries to the disk."""
        self._write()
        if self.unsynced:
            os.fdatasync(self._descriptor)
            self.unsynced = 0

    def replace(self, path: Path) -> None:
        """Write all entries to the disk, and give the file the name of an older journal, which it replaces."""
        self.sync()
        self.path = self.path.replace(path)
        sync_directory(path.parent)

    def close(self) -> None:
        """Close the file, without the entries that were not written."""
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalContent(NamedTuple):
    """The content of a journal: the held runs in the order of their entries, and the state of their slab.

    `is_clean` is True if the daemon ended, and wrote the slab to its file.  `damaged_bytes` have no
    valid checksum.
    """

    slab_id: int
    boot_id: bytes
    is_clean: bool
    runs: dict[RunKey, JournaledRun]
    damaged_bytes: int

    @property
    def messages(self) -> int:
        """Return the number of records in all runs."""
        return sum(run.records for run in self.runs.values())


def read_journal(path: Path) -> JournalContent | None:
    """Read a journal; return None if the file is missing or has no valid BEGIN.

    The data of the runs are views of the mapped file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if not os.fstat(descriptor).st_size:
            return None
        file = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return _read(file)


def _read(file: mmap.mmap) -> JournalContent | None:
    begin, is_clean, valid_bytes = None, False, 0
    runs: dict[RunKey, JournaledRun] = {}
    for kind, body in _entries(file):
        valid_bytes += _ENTRY.size + len(body)
        is_clean = kind is _Kind.CLEAN
        if kind is _Kind.BEGIN:
            begin = _BEGIN.unpack(body)
        elif kind is _Kind.RUN:
            key, run = _unpack_run(body)
            runs[key] = run
        elif kind is _Kind.SETTLED:
            for fields in _KEY.iter_unpack(body):
                runs.pop(RunKey(*fields), None)
    if begin is None:
        return None
    slab_id, boot = begin
    return JournalContent(slab_id, boot, is_clean, runs, len(file) - valid_bytes)


def _unpack_run(body: memoryview) -> tuple[RunKey, JournaledRun]:
    *key, records, length = _RUN.unpack_from(body)
    data_at = _RUN.size + length
    return RunKey(*key), JournaledRun(bytes(body[_RUN.size : data_at]), records, body[data_at:])


def _entries(file: mmap.mmap) -> Iterator[tuple[_Kind, memoryview]]:
    view, at = memoryview(file), 0
    while (at := _next_entry(file, at)) >= 0:
        _, kind, length, checksum, _ = _ENTRY.unpack_from(file, at)
        body = view[at + _ENTRY.size : at + _ENTRY.size + length]
        if len(body) == length and crc32(body) == checksum:
            yield _Kind(kind), body
            at += _ENTRY.size + length
        else:
            at += 1


def _next_entry(file: mmap.mmap, at: int) -> int:
    """Return the offset of the next entry with a valid header, or -1."""
    while (at := file.find(_MAGIC, at)) >= 0 and at + _ENTRY.size <= len(file):
        header, checksum = file[at : at + _CHECKED], file[at + _CHECKED : at + _ENTRY.size]
        if crc32(header).to_bytes(4, "little") == checksum:
            return at
        at += 1
    return -1
