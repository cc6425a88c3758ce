"""The landing zone: slots that the kernel fills with datagrams, in shared memory.

What `recvmmsg()` has received is in the file before the call returns: the bytes in the slots, the lengths in the
message headers.  So a process that dies on the next instruction loses nothing.  The datagram in slot i has the arrival
number base + i; a record in a lane carries it, which is how a recovery knows whether a copy was finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["base_at", "empty", "landed_lengths", "slot_at"]


def base_at(slab: Slab) -> int:
    """File offset of the arrival number of slot 0."""
    return slab.geometry.landing_at + lay.LANDING_BASE_ARRIVAL


def slot_at(slab: Slab, slot: int) -> int:
    """File offset of a slot's bytes."""
    return slab.geometry.landing_slots_at + slot * slab.geometry.landing_slot_size


def _length_at(slab: Slab, slot: int) -> int:
    return slab.geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES + lay.MMSGHDR_LENGTH


def landed_lengths(slab: Slab) -> list[int]:
    """Lengths of the datagrams that are in the landing zone, slot by slot."""
    first = _length_at(slab, 0) >> 2
    stop = first + slab.geometry.landing_slots * (lay.MMSGHDR_BYTES >> 2)
    lengths = slab.words[first : stop : lay.MMSGHDR_BYTES >> 2].tolist()
    return lengths[: lengths.index(lay.LANDING_EMPTY)] if lay.LANDING_EMPTY in lengths else lengths


def empty(slab: Slab, slots: int) -> None:
    """Make the first `slots` slots hold nothing, the last of them first: what remains is always a run from slot 0."""
    for slot in range(slots - 1, -1, -1):
        slab.words[_length_at(slab, slot) >> 2] = lay.LANDING_EMPTY
