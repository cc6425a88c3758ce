"""The memory-mapped slab file: creation, locks, mapping, checks.

`create_slab` writes a new slab to a file without a name, then links the file to its final name.  So an incomplete file
never has the final name.  `Slab` maps an existing file.  The supervisor holds an exclusive flock on the file
(`lock_exclusive`).  Its children inherit mapping and flock, so the flock lasts while any process of the daemon may
still write.  A reader outside of the daemon maps a *private* copy.  If the reader also calls `lock_shared`, no daemon
can start on the file until the reader has finished.

Creation reserves the file's blocks in the file system.  Otherwise a store to the mapping would end the process with
SIGBUS once the file system is full.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError, creation_remedy
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_LANDING_SLOTS", "Geometry", "Slab", "create_slab", "lock_exclusive", "lock_shared"]

MAX_LANDING_SLOTS: Final = 64
"""Maximum number of slots for received datagrams, and so of datagrams that one `recvmmsg()` receives."""
_MIN_LANDING_SLOTS: Final = 4
"""Minimum number of slots: with fewer, `recvmmsg()` would save little over `recvmsg()`."""
_MAX_LANDING_BYTES: Final = 4 << 20
"""Limit of the size of all slots together; only _MIN_LANDING_SLOTS slots may exceed it."""
_MIN_CHUNKS: Final = 16
"""Number of chunks of the smallest slab."""


@dataclass(frozen=True)
class Geometry:
    """The number of entries in each part of the file, from which the offsets of the parts follow.

    `topics` and `partitions` are the capacities of the two tables: docs/slab.md describes the daemon's behavior when a
    table is full.  `landing_slot_size` is in bytes.
    """

    chunks: int
    topics: int = 8192
    partitions: int = 65536
    landing_slots: int = MAX_LANDING_SLOTS
    landing_slot_size: int = 65536
    rows: int = lay.ROW_FIRST_DISPATCHER + 128  # with a dispatcher for each broker that leads partitions

    @property
    def dispatcher_rows(self) -> range:
        return range(lay.ROW_FIRST_DISPATCHER, self.rows)

    @property
    def dispatcher_slots(self) -> range:
        return range(self.rows - lay.ROW_FIRST_DISPATCHER)

    @cached_property
    def topics_at(self) -> int:
        return lay.PAGE

    @cached_property
    def partitions_at(self) -> int:
        return lay.align(self.topics_at + self.topics * lay.TOPIC_ENTRY, lay.PAGE)

    @cached_property
    def rows_at(self) -> int:
        return lay.align(self.partitions_at + self.partitions * lay.PARTITION_ENTRY, lay.PAGE)

    @cached_property
    def senders_at(self) -> int:
        return lay.align(self.rows_at + self.rows * lay.ROW_BYTES, lay.PAGE)

    @cached_property
    def landing_at(self) -> int:
        size = lay.INPUT_ROW_COUNT * lay.SENDERS_PER_INPUT * lay.SENDER_ENTRY
        return lay.align(self.senders_at + size, lay.PAGE)

    @cached_property
    def landing_iovecs_at(self) -> int:
        return self.landing_at + lay.LANDING_HEADERS + self.landing_slots * lay.MMSGHDR_BYTES

    @cached_property
    def landing_controls_at(self) -> int:
        return lay.align(self.landing_iovecs_at + self.landing_slots * lay.IOVEC_BYTES, lay.CONTROL_BYTES)

    @cached_property
    def landing_slots_at(self) -> int:
        return lay.align(self.landing_controls_at + self.landing_slots * lay.CONTROL_BYTES, lay.PAGE)

    @cached_property
    def chunks_at(self) -> int:
        return lay.align(self.landing_slots_at + self.landing_slots * self.landing_slot_size, lay.PAGE)

    @cached_property
    def file_size(self) -> int:
        return self.chunks_at + self.chunks * lay.CHUNK_BYTES

    @classmethod
    def for_size(cls, size: int, largest_datagram: int) -> Geometry:
        """Return the geometry for `size` bytes of chunks, and for datagrams of up to `largest_datagram` bytes."""
        slot_size = lay.align(max(largest_datagram, 64), 64)
        slots = max(_MIN_LANDING_SLOTS, min(MAX_LANDING_SLOTS, _MAX_LANDING_BYTES // slot_size))
        return cls(chunks=max(_MIN_CHUNKS, size // lay.CHUNK_BYTES), landing_slots=slots, landing_slot_size=slot_size)

    @classmethod
    def from_superblock(cls, page: bytes | mmap.mmap) -> Geometry | None:
        """Return the geometry that the fields of a superblock give; None if they contradict each other."""
        fields = lay.SUPERBLOCK.unpack_from(page)
        _, _, chunk_size, file_size, chunks, topics, partitions, rows, slots, slot_size = fields
        geometry = cls(chunks, topics, partitions, slots, slot_size, rows)
        is_consistent = (chunk_size, file_size) == (lay.CHUNK_BYTES, geometry.file_size)
        return geometry if is_consistent and geometry.dispatcher_rows else None


class Slab:
    """A mapped slab file.

    `view` is the file as bytes, `words` as unsigned 32-bit and `longs` as unsigned 64-bit integers.  An index into
    `words` is a file offset divided by 4, an index into `longs` a file offset divided by 8.
    """

    def __init__(self, path: Path, *, private: bool = False, geometry: Geometry | None = None) -> None:
        """Map the slab at `path`.  Raises SlabError when it is missing, damaged or of another layout version.

        If `private` is True, the file is only read, and stores to the mapping stay in this process.  If `geometry` is
        given, the superblock is not read, and SlabError is raised when the file is too small for the geometry.
        """
        self.path = path
        self.is_private = private
        self.descriptor = _open(path, os.O_RDONLY if private else os.O_RDWR)
        """A descriptor of the mapped file, whatever has become of its path."""
        self._close_descriptor = weakref.finalize(self, os.close, self.descriptor)
        self._status = os.fstat(self.descriptor)
        if geometry is not None and self._status.st_size < geometry.file_size:
            raise SlabError(f"{path} is too small for the {geometry.chunks} chunks that it should have.")
        self.geometry = geometry or _read_geometry(path, self.descriptor)
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE if private else mmap.MAP_SHARED
        self._map = mmap.mmap(self.descriptor, self.geometry.file_size, flags=flags)
        self.view = memoryview(self._map)
        self.words = self.view.cast("I")
        self.longs = self.view.cast("Q")
        self.chunks_at = self.geometry.chunks_at  # an attribute here, because the kernels read it in each call

    @property
    def layout_version(self) -> int:
        return self.words[lay.SUPER_VERSION >> 2]

    @property
    def is_at_path(self) -> bool:
        """Return False if the mapped file is no longer at its path, because someone deleted or replaced it."""
        try:
            return os.path.samestat(self.path.stat(), self._status)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # this process may not read the directory, so nothing suggests that the file is gone

    def chunk_at(self, chunk: int) -> int:
        """Return the file offset of a chunk.  Raises SlabError for a chunk that does not exist."""
        if not 0 <= chunk < self.geometry.chunks:
            raise SlabError(f"There is no chunk {chunk} in {self.path}; it has {self.geometry.chunks}.")
        return self.chunks_at + chunk * lay.CHUNK_BYTES

    def owner_of(self, chunk: int) -> int:
        """Return the row of the input that owns a chunk in use."""
        return self.view[self.chunk_at(chunk) + lay.CHUNK_OWNER]

    def row_at(self, row: int) -> int:
        """Return the file offset of a process row."""
        return self.geometry.rows_at + row * lay.ROW_BYTES

    def read_signed(self, offset: int) -> int:
        """Return the signed 64-bit integer at a file offset that is a multiple of 8."""
        value = self.longs[offset >> 3]
        return value - (1 << 64) if value >> 63 else value

    def store_signed(self, offset: int, value: int) -> None:
        """Store a signed 64-bit integer at a file offset that is a multiple of 8, in one instruction."""
        self.longs[offset >> 3] = value & 0xFFFFFFFFFFFFFFFF

    def populate(self) -> None:
        """Load the first chunks into memory for about a tenth of a second, so that they cause no page faults later."""
        deadline = time.monotonic() + _POPULATE_S
        with suppress(OSError):  # Linux before 5.14 lacks this advice
            for at in range(self.chunks_at, self.geometry.file_size, _POPULATE_STEP):
                length = min(self.geometry.file_size - at, _POPULATE_STEP)
                self._map.madvise(_MADV_POPULATE_WRITE, at, length)
                if time.monotonic() > deadline:
                    break

    def flush(self) -> None:
        """Write all changes to the file's disk."""
        self._map.flush()

    def close(self) -> None:
        """Unmap the file.  Views that are still referenced keep the memory mapped until their release."""
        self.words.release()
        self.longs.release()
        self.view.release()
        self._close_descriptor()
        with suppress(BufferError):
            self._map.close()


_POPULATE_S: Final = 0.1
"""Time for `populate`, which delays the start of the daemon."""
_POPULATE_STEP: Final = 8 << 20
"""Bytes that one call of madvise() maps, in a few milliseconds."""
_MADV_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python's mmap module lacks."""
_MAP_NORESERVE: Final = 0x4000
"""MAP_NORESERVE, which Python's mmap module lacks before 3.13: a private copy uses memory only for changed pages."""


def _open(path: Path, mode: int) -> int:
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except OSError as error:
        raise SlabError(f"The slab {path} cannot be opened: {error.strerror}.") from error


def create_slab(path: Path, geometry: Geometry, now_ms: int) -> None:
    """Create an empty slab file of mode 0600 at `path`.

    Raises SlabError when `path` exists, or when the file system has no room for the whole file.
    """
    try:
        descriptor, draft = _open_draft(path)
    except OSError as error:
        remedy = f"{creation_remedy(error, path.parent)}, or set another slab.path."
        raise SlabError(f"The slab {path} cannot be created: {error.strerror}. {remedy}") from error
    try:
        _initialize(descriptor, geometry, now_ms)
        # Without `src_dir_fd`, which has no effect on an absolute path, Python would link the symbolic link itself.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError as error:
        raise SlabError(f"A slab exists already at {path}; the daemon does not overwrite it.") from error
    except OSError as error:
        raise SlabError(_creation_error(path, geometry, error)) from error
    finally:
        os.close(descriptor)
        if draft is not None:
            draft.unlink(missing_ok=True)


def _open_draft(path: Path) -> tuple[int, Path | None]:
    """Create a file in the directory of `path`, and return its descriptor and its path.

    The file has no path (None), so a kill leaves nothing, or a temporary one if the file system requires a path.
    """
    with suppress(OSError):  # the error of the second call tells if it has another cause than the file system
        return os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600), None
    draft = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")  # no other user can guess the name and occupy it
    return os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), draft


def _initialize(descriptor: int, geometry: Geometry, now_ms: int) -> None:
    os.posix_fallocate(descriptor, 0, geometry.file_size)
    page = bytearray(lay.PAGE)
    lay.SUPERBLOCK.pack_into(
        page,
        0,
        lay.SUPER_MAGIC,
        lay.LAYOUT_VERSION,
        lay.CHUNK_BYTES,
        geometry.file_size,
        geometry.chunks,
        geometry.topics,
        geometry.partitions,
        geometry.rows,
        geometry.landing_slots,
        geometry.landing_slot_size,
    )
    page[lay.SUPER_PRODUCER_ID : lay.SUPER_PRODUCER_ID + 8] = b"\xff" * 8  # -1: none yet
    page[lay.SUPER_CREATED_MS : lay.SUPER_CREATED_MS + 8] = now_ms.to_bytes(8, "little", signed=True)
    page[lay.SUPER_TOPIC_COUNT] = 1  # entry 0, which is never used, is counted
    os.pwrite(descriptor, page, 0)
    empty_headers = b"\xff" * (geometry.landing_slots * lay.MMSGHDR_BYTES)  # LANDING_EMPTY in each length
    os.pwrite(descriptor, empty_headers, geometry.landing_at + lay.LANDING_HEADERS)


def _creation_error(path: Path, geometry: Geometry, error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"The slab {path} cannot be created: {error.strerror}."
    free = os.statvfs(path.parent)
    return (
        f"The slab {path} needs {geometry.file_size >> 20} MiB, but its file system has only "
        f"{free.f_bavail * free.f_frsize >> 20} MiB free; reduce slab.size, or set slab.path to another file system."
    )


def _read_geometry(path: Path, descriptor: int) -> Geometry:
    page = os.pread(descriptor, lay.PAGE, 0)
    if len(page) < lay.PAGE or not page.startswith(lay.SUPER_MAGIC):
        raise SlabError(f"{path} is not a slab: it does not begin with {lay.SUPER_MAGIC.decode()}.")
    _, version, *_ = lay.SUPERBLOCK.unpack_from(page)
    if version not in lay.READABLE_VERSIONS:
        readable = " and ".join(map(str, lay.READABLE_VERSIONS))
        raise SlabError(
            f"{path} has layout version {version}; this program reads {readable}. Use a release of bruce with the "
            "file's version: docs/slab.md lists them."
        )
    geometry = Geometry.from_superblock(page)
    if geometry is None or os.fstat(descriptor).st_size != geometry.file_size:
        raise SlabError(f"{path} is damaged: its superblock does not match its size.")
    return geometry


def layout_version_of(path: Path) -> int | None:
    """Return the layout version that the file at `path` names; None if there is no such file, or it is no slab."""
    try:
        with path.open("rb") as file:
            beginning = file.read(len(lay.SUPER_MAGIC) + 4)
    except OSError:
        return None
    magic, version = beginning[: len(lay.SUPER_MAGIC)], beginning[len(lay.SUPER_MAGIC) :]
    return int.from_bytes(version, "little") if magic == lay.SUPER_MAGIC else None


def lock_exclusive(path: Path) -> int:
    """Lock the slab at `path` for a daemon and return the descriptor that holds the lock.

    Raises SlabError when a running daemon holds the lock.  The lock ends when all copies of the descriptor, also those
    in child processes, are closed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        text = f"The slab {path} belongs to a daemon that is running; stop it or set another slab.path."
        raise SlabError(text) from error
    return descriptor


def lock_shared(path: Path) -> int | None:
    """Lock the slab at `path` for a reader, so that no daemon can start on it; return the descriptor with the lock.

    Return None when a running daemon uses the slab.  Raises SlabError when the file cannot be opened.
    """
    descriptor = _open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
