"""The private mapping of a slab file, also of one with a damaged superblock.

The superblock has the numbers from which the offsets of the file's parts follow.  They are the same in each slab,
except for the number of chunks, and the number and size of landing slots, which depend on the largest datagram.  So if
the superblock is inconsistent, the repair searches the file for the first chunk header, and computes the slot size that
leads to its offset.  A slab of another layout version is not repaired.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import TYPE_CHECKING

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import MAX_LANDING_SLOTS, Geometry, Slab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["open_private"]


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
    return slab, damage + _repair_topic_count(slab)


def _reconstruct_geometry(path: Path, error: SlabError) -> Geometry:
    """Return the geometry of a file that `Slab` rejected with `error`.  Raises `error` if none can be computed."""
    if not path.is_file() or path.stat().st_size < lay.PAGE:
        raise error
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        magic, version, *_ = lay.SUPERBLOCK.unpack_from(data)
        if magic == lay.SUPER_MAGIC and version != lay.LAYOUT_VERSION:
            raise error
        # The superblock is consistent if the file was only truncated.
        geometry = Geometry.from_superblock(data) or _from_first_chunk(data)
        if geometry is None or geometry.chunks_at >= len(data):
            raise error
        present = (len(data) - geometry.chunks_at) // lay.CHUNK_BYTES
        return replace(geometry, chunks=min(geometry.chunks, present))


def _from_first_chunk(data: mmap.mmap) -> Geometry | None:
    """Return the geometry in which the first chunk is at the first chunk header of the file."""
    landing_at = Geometry(chunks=1).landing_at  # the same in each geometry
    pages = range(landing_at, len(data) - lay.CHUNK_BYTES + 1, lay.PAGE)
    first = next((at for at in pages if _is_chunk_header(data, at)), None)
    if first is None:
        return None
    chunks = (len(data) - first) // lay.CHUNK_BYTES
    fitting = [replace(geometry, chunks=chunks) for geometry in _candidate_geometries(first)]
    return max(fitting, key=lambda geometry: _agrees_with_iovec(data, geometry), default=None)


def _is_chunk_header(data: mmap.mmap, at: int) -> bool:
    magic, _, state, owner, _, span = lay.CHUNK.unpack_from(data, at)[:6]
    return magic == lay.CHUNK_MAGIC and state in lay.CHUNK_STATES and owner in lay.INPUT_ROWS and span > 0


def _candidate_geometries(first: int) -> Iterator[Geometry]:
    """Yield the results of `Geometry.for_size` in which the first chunk is at offset `first`."""
    for slots in range(1, MAX_LANDING_SLOTS + 1):
        padded_size = first - Geometry(chunks=1, landing_slots=slots).landing_slots_at  # all slots, and the padding
        # A slot size is a multiple of 64, and the padding is less than a page.
        largest = (padded_size // slots) & -64
        too_small = max(0, padded_size - lay.PAGE) // slots
        for slot_size in range(largest, too_small, -64):
            geometry = Geometry.for_size(size=0, largest_datagram=slot_size)  # as few chunks as possible
            if (geometry.landing_slots, geometry.chunks_at) == (slots, first):
                yield geometry


def _agrees_with_iovec(data: mmap.mmap, geometry: Geometry) -> bool:
    """Return True if the first iovec of the landing zone has the slot size."""
    length_at = geometry.landing_iovecs_at + 8  # after the address
    return int.from_bytes(data[length_at : length_at + 8], "little") == geometry.landing_slot_size


def _repair_topic_count(slab: Slab) -> list[str]:
    """Replace an impossible SUPER_TOPIC_COUNT: the first entry without a name ends the topic table."""
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
