"""The journal file: copies of held runs on disk, from which a new slab is filled after a power failure.

A run is held if one of its messages is held.  The file is a sequence of entries, each with a checksum:

    BEGIN     a daemon begins to use a slab: creation time of the slab, boot id of the machine, seed of the file
    RUN       a closed run: its key in the slab, its topic, its records as they are in the slab
    FENCED    a closed run of a complete fenced attempt: row and number of the attempt, then the fields of a RUN
    COMMIT    the attempts with FENCED runs since the previous COMMIT, and the number of runs of each
    CLUSTER   the id of the Kafka cluster to which all messages belong, also the messages of earlier entries
    SETTLED   keys of runs that are not held any more
    CLEAN     the daemon ended, after it had written the slab to the slab's file

`sync` makes all entries written so far durable.  After a power failure, any part of the later entries may be missing.
A reader skips bytes without a valid checksum up to the next entry.  It restores an attempt as a whole or not at all: it
uses the FENCED runs only if a COMMIT follows, with as many runs for the attempt as the reader has found.  A RUN needs
no COMMIT, because its checksum alone shows that it is whole.

Behind damaged bytes, a reader could take a part of a message for an entry.  So the body of the first entry contains the
*seed*, a random number that no client knows, and the checksums of all later headers start from the seed.  Journals of
earlier versions have no seed in that body; the checksums of their headers start from 0.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter, defaultdict
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
_HEADER: Final = Struct("<4sIIII")
"""The header of an entry: magic, kind, length of the body, checksum of the body, checksum of these four fields."""
_CHECKED_BYTES: Final = 16
"""Size of the fields of a header that the header's checksum covers."""
_BEGIN: Final = Struct("<q36s")
"""Creation time of the slab in ms since 1970, boot id; the seed follows."""
_RUN: Final = Struct("<IIIIH")
"""The fields of `RunKey`, number of records, length of the topic; topic and records follow."""
_ATTEMPT: Final = Struct("<II")
"""The fields of `AttemptKey`."""
_COMMITTED: Final = Struct("<III")
"""The fields of `AttemptKey`, number of the attempt's runs."""
_SEED_BYTES: Final = 4
_KEY: Final = Struct("<III")
"""The fields of `RunKey`."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_WRITE_BYTES: Final = 4 << 20
"""The buffered entries are written to the file as soon as they have this size."""


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
    """The identity of a run in its slab; `offset` is the offset of the run in its chunk."""

    chunk: int
    generation: int
    offset: int


class AttemptKey(NamedTuple):
    """The identity of a fenced attempt: the process row of its input, and its number among the input's attempts."""

    row: int
    number: int


class JournaledRun(NamedTuple):
    """A copy of a run; `data` has the slab's bytes of the records, `attempt` is set for runs of fenced attempts."""

    topic: bytes
    record_count: int
    data: bytes | memoryview
    attempt: AttemptKey | None = None


def boot_id() -> bytes:
    """Return the random id that Linux gives each boot of the machine."""
    return _BOOT_ID.read_bytes().rstrip()


class Journal:
    """A journal file that is being written.  The methods raise OSError if the file system does."""

    def __init__(self, path: Path, descriptor: int, seed: bytes) -> None:
        self.path = path
        self._seed = seed
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._uncommitted: Counter[AttemptKey] = Counter()
        """The number of FENCED runs of each attempt since the last COMMIT."""
        self.unsynced_bytes = 0
        """Number of bytes written since the last `sync`."""
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Create an empty journal with mode 0600, and delete an older file of this name."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path.unlink(missing_ok=True)
        return cls(path, os.open(path, flags, 0o600), os.urandom(_SEED_BYTES))

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal to append entries; raise OSError if the file does not begin with a valid BEGIN."""
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
        kind, fields = _EntryKind.RUN, _RUN.pack(*key, run.record_count, len(run.topic))
        if run.attempt is not None:
            self._uncommitted[run.attempt] += 1
            kind, fields = _EntryKind.FENCED, _ATTEMPT.pack(*run.attempt) + fields
        self._add(kind, b"".join((fields, run.topic, run.data)))

    def add_commit(self) -> None:
        """Add a COMMIT of the attempts with runs since the previous COMMIT, if there are any.

        The caller must have added all runs of these attempts.
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
        checked = _HEADER.pack(_MAGIC, kind, len(body), crc32(body), 0)[:_CHECKED_BYTES]  # without the 0 at the end
        is_first = not self.size and not self._buffer
        self._buffer += checked + _header_checksum(checked, b"" if is_first else self._seed)
        self._buffer += body
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        unwritten = memoryview(self._buffer)
        while unwritten:
            written_size = os.write(self._descriptor, unwritten)
            self.size, unwritten = self.size + written_size, unwritten[written_size:]
            self.unsynced_bytes += written_size
        self._buffer = bytearray()

    def sync(self) -> None:
        """Make all entries durable."""
        self._write()
        if self.unsynced_bytes:
            os.fdatasync(self._descriptor)
            self.unsynced_bytes = 0

    def replace(self, path: Path) -> None:
        """Make all entries durable, and rename the file to `path`, in place of an older journal."""
        self.sync()
        self.path = self.path.replace(path)
        sync_directory(path.parent)

    def close(self) -> None:
        """Close the file. Entries that are still in the buffer are lost."""
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalContent(NamedTuple):
    """The content of a journal: the held runs in the order of their entries, and facts about their slab.

    `is_clean` is True if the last entry is CLEAN.  `damaged_bytes` is the number of bytes without a valid checksum.
    `incomplete_count` is the number of messages that are not in `runs`, because the COMMIT or a run of their fenced
    attempt is missing.  `cluster_id` is empty if the journal has no CLUSTER.
    """

    slab_id: int
    boot_id: bytes
    is_clean: bool
    runs: dict[RunKey, JournaledRun]
    damaged_bytes: int
    incomplete_count: int
    cluster_id: str

    @property
    def message_count(self) -> int:
        return sum(run.record_count for run in self.runs.values())


def read_journal(path: Path) -> JournalContent | None:
    """Read a journal; return None if the file is missing or has no valid BEGIN.

    `data` of each run is a view of the mapped file.  Raise StartError for a journal of a newer version.
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
        valid_bytes += _HEADER.size + len(body)
        reader.apply(known_kind, body)
    return reader.finish(damaged_bytes=len(file) - valid_bytes)


class _JournalReader:
    """Collects the content of a journal, entry by entry."""

    def __init__(self) -> None:
        self._begin: tuple[int, bytes] | None = None
        self._is_clean = False
        self._runs: dict[RunKey, JournaledRun] = {}
        self._uncommitted: defaultdict[AttemptKey, dict[RunKey, JournaledRun]] = defaultdict(dict)
        self._incomplete_count = 0
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
        self._incomplete_count += sum(run.record_count for runs in self._uncommitted.values() for run in runs.values())
        self._uncommitted.clear()

    def finish(self, damaged_bytes: int) -> JournalContent | None:
        """Return the content; None if there was no BEGIN.  FENCED runs behind the last COMMIT count as incomplete."""
        self._drop_uncommitted()
        if self._begin is None:
            return None
        return JournalContent(
            *self._begin, self._is_clean, self._runs, damaged_bytes, self._incomplete_count, self._cluster_id
        )


def _unpack_run(body: memoryview) -> tuple[RunKey, JournaledRun]:
    """Decode the fields of a RUN entry, which are also the last fields of a FENCED entry."""
    *key, record_count, topic_length = _RUN.unpack_from(body)
    data_offset = _RUN.size + topic_length
    return RunKey(*key), JournaledRun(bytes(body[_RUN.size : data_offset]), record_count, body[data_offset:])


def _seed_in(page: bytes) -> bytes | None:
    """Return the seed in the first page of a journal, or None if the page does not begin with a valid BEGIN."""
    if _next_entry(page, 0, b"") != 0:
        return None
    _, kind, length, checksum, _ = _HEADER.unpack_from(page)
    body = page[_HEADER.size : _HEADER.size + length]
    return body[_BEGIN.size :] if kind == _EntryKind.BEGIN and crc32(body) == checksum else None


def _header_checksum(checked: bytes, seed: bytes) -> bytes:
    """Return the checksum of a header; `checked` has the fields that the checksum covers."""
    return crc32(checked, int.from_bytes(seed, "little")).to_bytes(4, "little")


def _entries(file: mmap.mmap, seed: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield (kind, body) of the valid entries, and skip damaged bytes."""
    view, offset = memoryview(file), 0
    while (offset := _next_entry(file, offset, seed)) >= 0:
        _, kind, length, checksum, _ = _HEADER.unpack_from(file, offset)
        body = view[offset + _HEADER.size : offset + _HEADER.size + length]
        if len(body) == length and crc32(body) == checksum:
            yield kind, body
            offset += _HEADER.size + length
        else:
            offset += 1


def _next_entry(file: mmap.mmap | bytes, offset: int, seed: bytes) -> int:
    """Return the offset of the next entry with a valid header; -1 if there is none.  The first header has no seed."""
    while (offset := file.find(_MAGIC, offset)) >= 0 and offset + _HEADER.size <= len(file):
        checksum_offset = offset + _CHECKED_BYTES
        checked, checksum = file[offset:checksum_offset], file[checksum_offset : offset + _HEADER.size]
        if _header_checksum(checked, seed if offset else b"") == checksum:
            return offset
        offset += 1
    return -1
