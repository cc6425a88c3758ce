"""How full the slab is: the chunks that hold a message which is not settled, by the size of what they hold.

A place is a chunk, or a span of neighbouring chunks: for a message that does not fit into one, or for a busy lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import is_settled, used_heads

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["SizeClass", "SlabUse", "read_slab_use"]


class SizeClass(msgspec.Struct, frozen=True):
    """Places of more than half of, and at most `bytes`.

    `places` says how many there are.  `in_use` bytes hold messages that are not settled; `settled` ones are used again
    when memory is wanted.
    """

    bytes: int
    places: int
    in_use: int
    settled: int


class SlabUse(msgspec.Struct, frozen=True):
    """All in bytes.  What is neither in use nor settled is free.  `classes` begin with the smallest.

    `chunk` is the smallest place: a message for which it is too small, with its header, has a place of its own.
    """

    size: int
    chunk: int
    in_use: int
    settled: int
    classes: list[SizeClass]

    @property
    def share(self) -> float:
        """The share of the slab that cannot be reclaimed now, from 0 to 1."""
        return round(self.in_use / self.size, 4)


class _Sums:
    __slots__ = ("in_use", "places", "settled")

    def __init__(self) -> None:
        self.places = self.in_use = self.settled = 0

    def add(self, size: int, *, is_settled: bool) -> None:
        self.places += 1
        if is_settled:
            self.settled += size
        else:
            self.in_use += size


def read_slab_use(slab: Slab) -> SlabUse:
    """The use as of now."""
    sums: dict[int, _Sums] = {}
    for chunk, _, span, _ in used_heads(slab):
        largest = lay.CHUNK_BYTES << (span - 1).bit_length()
        sums.setdefault(largest, _Sums()).add(span * lay.CHUNK_BYTES, is_settled=is_settled(slab, chunk))
    return SlabUse(
        size=slab.geometry.chunks * lay.CHUNK_BYTES,
        chunk=lay.CHUNK_BYTES,
        in_use=sum(each.in_use for each in sums.values()),
        settled=sum(each.settled for each in sums.values()),
        classes=[SizeClass(size, it.places, it.in_use, it.settled) for size, it in sorted(sums.items())],
    )
