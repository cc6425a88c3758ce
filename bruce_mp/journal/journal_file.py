"""The journal file: copies of held runs on disk, from which a new slab is filled after a power failure.

A *run* is a sequence of records in the slab.  It is *held* until all its messages are *settled*: delivered or
discarded.  The file is a sequence of entries, each with a checksum:

    BEGIN     a daemon begins to use a slab: creation time of the slab, boot id of the machine, seed of the file
    RUN       a closed run: its key in the slab, its topic, its records as they are in the slab
    FENCED    a closed run of a complete fenced attempt: row and number of the attempt, then the fields of a RUN
    COMMIT    the attempts with FENCED runs since the last COMMIT, and the number of runs of each
    CLUSTER   the id of the Kafka cluster that all messages are for, also messages of earlier entries
    SETTLED   keys of runs that are not held any more
    CLEAN     the daemon wrote the slab to its file and ended

A *fenced attempt* is a group of messages that are delivered together or not at all.

`sync` makes all entries written so far durable.  After a power failure, any part of the later entries may be missing,
in any order.  A reader skips bytes without a valid checksum up to the next entry.  It ignores the FENCED runs of an
attempt unless a COMMIT follows with the number of runs that the reader has found: an attempt is restored as a whole or
not at all.  A RUN needs no COMMIT, because its checksum alone shows that it is whole.

A reader that skips damage may come to the bytes of a message that look like an entry.  So the body of the first entry
contains the *seed*, a random number that no client knows, and the checksums of all later headers start from the seed.
Journals of earlier versions have the seed 0.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter as Tally
from collections import defaultdict
from enum import IntEnum, unique
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "AttemptKey",
    "Journal",
    "JournalContent",
    "JournaledRun",
    "RunKey",
    "boot_id",
    "read_journal",
    "sync_directory",
]

_MAGIC: Final = b"BRJL"
_ENTRY: Final = Struct("<4sIIII")
"""The header: magic, kind, length of the body, checksum of the body, checksum of the header's other fields."""
_CHECKED_BYTES: Final = 16
"""Number of bytes of a header before its own checksum, which covers them."""
_BEGIN: Final = Struct("<q36s")
"""creation time of the slab in ms since 1970, boot id; the seed follows"""
_RUN: Final = Struct("<IIIIH")
"""chunk, generation, offset, number of records, length of the topic; topic and records follow"""
_ATTEMPT: Final = Struct("<II")
"""row, number"""
_COMMITTED: Final = Struct("<III")
"""row and number of an attempt, number of its runs"""
_SEED_BYTES: Final = 4
_KEY: Final = Struct("<III")
"""The fields of `RunKey`."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_WRITE_BYTES: Final = 4 << 20
"""Size of the buffered entries at which they are written to the file."""


@unique
class _EntryKind(IntEnum):
    BEGIN = 1
    RUN = 2
    SETTLED = 3
    CLEAN = 4
    FENCED = 5
    COMMIT = 6
    CLUSTER = 7


class RunKey(NamedTuple):
    """The identity of a run in its slab.  A chunk gets another generation when it is reused."""

    chunk: int
    generation: int
    offset: int


class AttemptKey(NamedTuple):
    """The identity of a fenced attempt: the row of its input, and its number among the input's attempts."""

    row: int
    number: int


class JournaledRun(NamedTuple):
    """A copy of a run: `records` is the number of its records, `data` has the bytes of the records in the slab."""

    topic: bytes
    records: int
    data: bytes | memoryview
    attempt: AttemptKey | None = None


def boot_id() -> bytes:
    """Return the kernel's random id of the present boot."""
    return _BOOT_ID.read_bytes().rstrip()


class Journal:
    """A journal file that is being written.  The methods raise OSError if the file system does."""

    def __init__(self, path: Path, descriptor: int, seed: bytes) -> None:
        self.path = path
        self._seed = seed
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._uncommitted: Tally[AttemptKey] = Tally()
        """The number of FENCED runs of each attempt since the last COMMIT."""
        self.unsynced = 0
        """Bytes written since the last `sync`."""
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Create an empty journal with mode 0600, in place of an older file."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path.unlink(missing_ok=True)
        return cls(path, os.open(path, flags, 0o600), os.urandom(_SEED_BYTES))

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal, to append entries; raise OSError if the file does not begin with a valid BEGIN."""
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        seed = _seed_in(os.pread(descriptor, mmap.PAGESIZE, 0))
        if seed is None:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a journal")
        return cls(path, descriptor, seed)

    def add_begin(self, slab_id: int, boot: bytes) -> None:
        """Add a BEGIN; `slab_id` is the slab's creation time in ms since 1970, `boot` the result of `boot_id`."""
        self._add(_EntryKind.BEGIN, _BEGIN.pack(slab_id, boot) + self._seed)

    def add_cluster(self, cluster_id: str) -> None:
        self._add(_EntryKind.CLUSTER, cluster_id.encode())

    def add_run(self, key: RunKey, run: JournaledRun) -> None:
        """Add a run, as a RUN or FENCED entry.  After the last run of a fenced attempt, call `add_commit`."""
        kind, fields = _EntryKind.RUN, _RUN.pack(*key, run.records, len(run.topic))
        if run.attempt is not None:
            self._uncommitted[run.attempt] += 1
            kind, fields = _EntryKind.FENCED, _ATTEMPT.pack(*run.attempt) + fields
        self._add(kind, b"".join((fields, run.topic, run.data)))

    def add_commit(self) -> None:
        """Add a COMMIT of the attempts with runs that were added since the last COMMIT, if there are any.

        All runs of these attempts must have been added.
        """
        body = b"".join([_COMMITTED.pack(*attempt, run_count) for attempt, run_count in self._uncommitted.items()])
        self._uncommitted.clear()
        if body:
            self._add(_EntryKind.COMMIT, body)

    def add_settled(self, keys: Iterable[RunKey]) -> None:
        body = b"".join([_KEY.pack(*key) for key in keys])
        if body:
            self._add(_EntryKind.SETTLED, body)

    def add_clean(self) -> None:
        self._add(_EntryKind.CLEAN, b"")

    def _add(self, kind: _EntryKind, body: bytes) -> None:
        checked = _ENTRY.pack(_MAGIC, kind, len(body), crc32(body), 0)[:_CHECKED_BYTES]  # without the 0 at the end
        is_first = not self.size and not self._buffer
        self._buffer += checked + _header_checksum(checked, b"" if is_first else self._seed)
        self._buffer += body
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        rest = memoryview(self._buffer)
        while rest:
            written = os.write(self._descriptor, rest)
            self.size, rest = self.size + written, rest[written:]
            self.unsynced += written
        self._buffer = bytearray()

    def sync(self) -> None:
        """Make all entries durable."""
        self._write()
        if self.unsynced:
            os.fdatasync(self._descriptor)
            self.unsynced = 0

    def replace(self, path: Path) -> None:
        """Make all entries durable, and rename the file to `path`, in place of an older journal."""
        self.sync()
        self.path = self.path.replace(path)
        sync_directory(path.parent)

    def close(self) -> None:
        """Close the file. Entries that are still in the buffer are lost."""
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Make the present file names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalContent(NamedTuple):
    """The content of a journal: the held runs in the order of their entries, and facts about their slab.

    `is_clean` is True if the daemon wrote the slab to its file and ended.  `damaged_bytes` is the number of bytes
    without a valid checksum.  `incomplete` is the number of messages that are not in `runs`, because the COMMIT or a
    run of their fenced attempt is missing.  `cluster_id` is empty if no broker had reported it.
    """

    slab_id: int
    boot_id: bytes
    is_clean: bool
    runs: dict[RunKey, JournaledRun]
    damaged_bytes: int
    incomplete: int
    cluster_id: str

    @property
    def messages(self) -> int:
        """Return the number of messages in the held runs."""
        return sum(run.records for run in self.runs.values())


def read_journal(path: Path) -> JournalContent | None:
    """Read a journal; return None if the file is missing or has no valid BEGIN.

    The data of the runs are views of the mapped file.  Raise StartError for a journal of a newer version.
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
    return _read_mapped(file, path)


def _read_mapped(file: mmap.mmap, path: Path) -> JournalContent | None:
    seed = _seed_in(file[: mmap.PAGESIZE])
    if seed is None:
        return None
    reader, valid_bytes = _JournalReader(), 0
    for kind, body in _entries(file, seed):
        try:
            known_kind = _EntryKind(kind)
        except ValueError as error:
            raise StartError(
                f"The journal {path} has entries of the unknown kind {kind}: a newer version of bruce wrote it. Start "
                "that version."
            ) from error
        valid_bytes += _ENTRY.size + len(body)
        reader.apply(known_kind, body)
    return reader.finish(damaged_bytes=len(file) - valid_bytes)


class _JournalReader:
    """The content of a journal up to the last entry that was applied."""

    def __init__(self) -> None:
        self._begin: tuple[int, bytes] | None = None
        self._is_clean = False
        self._runs: dict[RunKey, JournaledRun] = {}
        self._uncommitted: defaultdict[AttemptKey, dict[RunKey, JournaledRun]] = defaultdict(dict)
        self._incomplete = 0
        self._cluster_id = ""

    def apply(self, kind: _EntryKind, body: memoryview) -> None:
        self._is_clean = kind is _EntryKind.CLEAN
        if kind is _EntryKind.BEGIN:
            self._begin = _BEGIN.unpack_from(body)
        elif kind is _EntryKind.RUN:
            key, run = _unpack_run(body)
            self._runs[key] = run
        elif kind is _EntryKind.FENCED:
            attempt = AttemptKey(*_ATTEMPT.unpack_from(body))
            key, run = _unpack_run(body[_ATTEMPT.size :])
            self._uncommitted[attempt][key] = run._replace(attempt=attempt)
        elif kind is _EntryKind.COMMIT:
            for row, number, run_count in _COMMITTED.iter_unpack(body):
                self._commit(AttemptKey(row, number), run_count)
            self._drop_uncommitted()
        elif kind is _EntryKind.SETTLED:
            for fields in _KEY.iter_unpack(body):
                self._runs.pop(RunKey(*fields), None)
        elif kind is _EntryKind.CLUSTER:
            self._cluster_id = bytes(body).decode()

    def _commit(self, attempt: AttemptKey, run_count: int) -> None:
        if len(self._uncommitted[attempt]) == run_count:
            self._runs |= self._uncommitted.pop(attempt)

    def _drop_uncommitted(self) -> None:
        self._incomplete += sum(run.records for runs in self._uncommitted.values() for run in runs.values())
        self._uncommitted.clear()

    def finish(self, damaged_bytes: int) -> JournalContent | None:
        """Return the content, None if there was no BEGIN.  FENCED runs after the last COMMIT count as incomplete."""
        self._drop_uncommitted()
        if self._begin is None:
            return None
        return JournalContent(
            *self._begin, self._is_clean, self._runs, damaged_bytes, self._incomplete, self._cluster_id
        )


def _unpack_run(body: memoryview) -> tuple[RunKey, JournaledRun]:
    """Decode the fields of a RUN entry, which are also the last fields of a FENCED entry."""
    *key, records, topic_length = _RUN.unpack_from(body)
    data_at = _RUN.size + topic_length
    return RunKey(*key), JournaledRun(bytes(body[_RUN.size : data_at]), records, body[data_at:])


def _seed_in(page: bytes) -> bytes | None:
    """Return the seed in the first page of a journal, or None if the page does not begin with a valid BEGIN."""
    if _next_entry(page, 0, b"") != 0:
        return None
    _, kind, length, checksum, _ = _ENTRY.unpack_from(page)
    body = page[_ENTRY.size : _ENTRY.size + length]
    return body[_BEGIN.size :] if kind == _EntryKind.BEGIN and crc32(body) == checksum else None


def _header_checksum(checked: bytes, seed: bytes) -> bytes:
    """Return the checksum of a header; `checked` is the header without it."""
    return crc32(checked, int.from_bytes(seed, "little")).to_bytes(4, "little")


def _entries(file: mmap.mmap, seed: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield (kind, body) of the valid entries, and skip damaged bytes."""
    view, at = memoryview(file), 0
    while (at := _next_entry(file, at, seed)) >= 0:
        _, kind, length, checksum, _ = _ENTRY.unpack_from(file, at)
        body = view[at + _ENTRY.size : at + _ENTRY.size + length]
        if len(body) == length and crc32(body) == checksum:
            yield kind, body
            at += _ENTRY.size + length
        else:
            at += 1


def _next_entry(file: mmap.mmap | bytes, at: int, seed: bytes) -> int:
    """Return the offset of the next entry with a valid header, or -1.  The first header's checksum has no seed."""
    while (at := file.find(_MAGIC, at)) >= 0 and at + _ENTRY.size <= len(file):
        checksum_at = at + _CHECKED_BYTES
        checked, checksum = file[at:checksum_at], file[checksum_at : at + _ENTRY.size]
        if _header_checksum(checked, seed if at else b"") == checksum:
            return at
        at += 1
    return -1
