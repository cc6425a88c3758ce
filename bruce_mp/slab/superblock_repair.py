"""The private mapping of a slab file, even if the file has a damaged superblock.

The superblock has the *geometry*: the numbers from which the offsets of the file's parts follow.  They are the same in
each slab of a layout version, except the number of chunks, and the number and size of landing slots, which depend on
the largest datagram.  So if the superblock is inconsistent, the repair searches the file for the first chunk header,
and computes the version and the slot size with which the first chunk has the offset of this header.  A slab of a
version that this program does not read is not repaired.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import MAX_LANDING_SLOTS, Geometry, Slab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["open_private"]


_GEOMETRIES: Final = {
    lay.LAYOUT_VERSION: Geometry(chunks=1),
    1: Geometry(chunks=1, topics=4096, partitions=32768, rows=96),
}
"""A geometry of each readable layout version, the newest first."""


def open_private(path: Path) -> tuple[Slab, list[str]]:
    """Return a private mapping of the slab at `path`, with a sentence for each repair.

    Raises SlabError when the file is no slab, of another layout version, or damaged beyond repair.
    """
    damage: list[str] = []
    try:
        slab = Slab(path, private=True)
    except SlabError as error:
        slab = Slab(path, private=True, geometry=_reconstruct_geometry(path, error))
        damage.append(f"{error} It was read with {slab.geometry.chunks} chunks from byte {slab.chunks_at} on.")
        slab.words[lay.SUPER_VERSION >> 2] = _version_of(slab.geometry)
    return slab, damage + _repair_topic_count(slab)


def _version_of(geometry: Geometry) -> int:
    """Return the layout version of a geometry, given by its number of rows."""
    versions = (version for version, tables in _GEOMETRIES.items() if tables.rows == geometry.rows)
    return next(versions, lay.LAYOUT_VERSION)


def _reconstruct_geometry(path: Path, error: SlabError) -> Geometry:
    """Return the geometry of a file that `Slab` rejected with `error`.  Raises `error` if none can be computed."""
    if not path.is_file() or path.stat().st_size < lay.PAGE:
        raise error
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        magic, version, *_ = lay.SUPERBLOCK.unpack_from(data)
        if magic == lay.SUPER_MAGIC and version not in lay.READABLE_VERSIONS:
            raise error
        # Geometries of several versions may fit, so the file's own version decides, if it is readable.
        versions = (version,) if magic == lay.SUPER_MAGIC else lay.READABLE_VERSIONS
        # If the file was only truncated, its superblock is consistent.
        geometry = Geometry.from_superblock(data) or _from_first_chunk(data, versions)
        if geometry is None or geometry.chunks_at >= len(data):
            raise error
        present_count = (len(data) - geometry.chunks_at) // lay.CHUNK_BYTES
        return replace(geometry, chunks=min(geometry.chunks, present_count))


def _from_first_chunk(data: mmap.mmap, versions: tuple[int, ...]) -> Geometry | None:
    """Return the geometry in which the first chunk is at the file's first chunk header; None if no geometry fits.

    Only geometries of the layout `versions` are considered.

    If several geometries fit, a geometry that agrees with the landing zone is preferred.
    """
    candidates = [tables for version, tables in _GEOMETRIES.items() if version in versions]
    landing_at = min(tables.landing_at for tables in candidates)
    pages = range(landing_at, len(data) - lay.CHUNK_BYTES + 1, lay.PAGE)
    chunks_at = next((at for at in pages if _is_chunk_header(data, at)), None)
    if chunks_at is None:
        return None
    chunk_count = (len(data) - chunks_at) // lay.CHUNK_BYTES
    fitting = [
        replace(geometry, chunks=chunk_count)
        for tables in candidates
        for geometry in _candidate_geometries(tables, chunks_at)
    ]
    return max(fitting, key=lambda geometry: _agrees_with_iovec(data, geometry), default=None)


def _is_chunk_header(data: mmap.mmap, at: int) -> bool:
    magic, _, state, owner, _, span = lay.CHUNK.unpack_from(data, at)[:6]
    return magic == lay.CHUNK_MAGIC and state in lay.CHUNK_STATES and owner in lay.INPUT_ROWS and span > 0


def _candidate_geometries(tables: Geometry, chunks_at: int) -> Iterator[Geometry]:
    """Yield all geometries with the tables and rows of `tables` and the first chunk at offset `chunks_at`.

    Only the numbers and sizes of landing slots that `Geometry.for_size` can return are considered.
    """
    for slots in range(1, MAX_LANDING_SLOTS + 1):
        # The size of all slots and of the padding between the last slot and the first chunk, less than a page.
        padded_size = chunks_at - replace(tables, landing_slots=slots).landing_slots_at
        largest_slot_size = (padded_size // slots) & -64  # a slot size is a multiple of 64
        too_small_slot_size = max(0, padded_size - lay.PAGE) // slots
        for slot_size in range(largest_slot_size, too_small_slot_size, -64):
            chosen_slots = Geometry.for_size(size=0, largest_datagram=slot_size).landing_slots
            geometry = replace(tables, landing_slots=chosen_slots, landing_slot_size=slot_size)
            if (geometry.landing_slots, geometry.chunks_at) == (slots, chunks_at):
                yield geometry


def _agrees_with_iovec(data: mmap.mmap, geometry: Geometry) -> bool:
    """Return True if the first `struct iovec` in the landing zone has the slot size of this geometry."""
    length_at = geometry.landing_iovecs_at + 8  # `iov_len`, after the address
    return int.from_bytes(data[length_at : length_at + 8], "little") == geometry.landing_slot_size


def _repair_topic_count(slab: Slab) -> list[str]:
    """Replace an impossible SUPER_TOPIC_COUNT by the number of entries before the first one without a name.

    Return a sentence about the repair, or an empty list.
    """
    index = lay.SUPER_TOPIC_COUNT >> 2
    if 1 <= slab.words[index] <= slab.geometry.topics:
        return []
    count = 1  # the unused entry 0 is counted
    while count < slab.geometry.topics and 1 <= _name_length(slab, count) <= lay.TOPIC_NAME_MAX:
        count += 1
    slab.words[index] = count
    return [f"The superblock has an impossible number of topics; the table has {count - 1}."]


def _name_length(slab: Slab, entry: int) -> int:
    return slab.words[(slab.geometry.topics_at + entry * lay.TOPIC_ENTRY + lay.TOPIC_NAME_LENGTH) >> 2]
