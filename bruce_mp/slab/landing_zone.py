"""The landing zone: slots in shared memory that the kernel fills with datagrams.

`recvmmsg()` stores bytes into the slots and lengths into the message headers before it returns, so a process that dies
afterwards loses nothing.  Message header i belongs to slot i and has the layout of `struct mmsghdr`.  The datagram in
slot i has the *arrival number* base + i.  The input copies the datagram to a chunk as a record with the same arrival
number.  If the input dies, its successor recognizes by this number the datagrams that were already copied.
"""

from __future__ import annotations

from array import array
from itertools import count as count_from
from operator import itemgetter
from socket import SOL_SOCKET
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = [
    "NO_USER",
    "SCM_CREDENTIALS",
    "SO_TIMESTAMP",
    "DatagramSenders",
    "base_at",
    "control_at",
    "empty_slots",
    "landed_extents",
    "landed_extents_within",
    "landed_lengths",
    "request_credentials",
    "senders_of",
    "slot_at",
    "was_truncated",
]


# Constants of Linux that Python's socket module lacks.
SO_TIMESTAMP: Final = 29
SCM_CREDENTIALS: Final = 2
NO_USER: Final = 0xFFFFFFFF
"""User and group of a sender without credentials; no user or group has this number."""


class DatagramSenders(NamedTuple):
    """The senders of a batch of datagrams, slot by slot."""

    pids: list[int]
    uids: list[int]
    gids: list[int]


def base_at(slab: Slab) -> int:
    """Return the file offset of the base: the arrival number of the datagram in slot 0."""
    return slab.geometry.landing_at + lay.LANDING_BASE_ARRIVAL


def slot_at(slab: Slab, slot: int) -> int:
    """Return the file offset of a slot."""
    return slab.geometry.landing_slots_at + slot * slab.geometry.landing_slot_size


def _column(integers: memoryview[int], at: int, step: int, count: int) -> memoryview[int]:
    """Return a view of `count` integers, the first at file offset `at`, the others `step` bytes apart."""
    first, step = at // integers.itemsize, step // integers.itemsize
    return integers[first : first + count * step : step]


def _lengths(slab: Slab, slots: int) -> memoryview[int]:
    """Return a view of the lengths in the message headers of the first slots."""
    at = slab.geometry.landing_at + lay.LANDING_HEADERS + lay.MMSGHDR_LENGTH
    return _column(slab.words, at, lay.MMSGHDR_BYTES, slots)


def landed_lengths(slab: Slab) -> list[int]:
    """Return the lengths of the datagrams in the landing zone, slot by slot."""
    lengths = _lengths(slab, slab.geometry.landing_slots).tolist()
    return lengths[: lengths.index(lay.LANDING_EMPTY)] if lay.LANDING_EMPTY in lengths else lengths


def landed_extents(slab: Slab) -> list[tuple[int, int]]:
    """Return (file offset, length) of the datagrams in the landing zone, slot by slot."""
    first, step = slab.geometry.landing_slots_at, slab.geometry.landing_slot_size
    return list(zip(count_from(first, step), landed_lengths(slab), strict=False))


def landed_extents_within(slab: Slab, count: int, max_size: int) -> list[tuple[int, int]]:
    """Return (file offset, length) of the first `count` datagrams; length 0 = more than `max_size` bytes.

    `max_size` is at most the size of a slot.  A datagram of `max_size` bytes may be a longer datagram that the kernel
    has truncated to the slot, so `was_truncated` decides.
    """
    extents = landed_extents(slab)[:count]
    if max(map(_length_of, extents), default=0) < max_size:
        return extents
    return [
        (at, 0 if length > max_size or (length == max_size and was_truncated(slab, slot)) else length)
        for slot, (at, length) in enumerate(extents)
    ]


def was_truncated(slab: Slab, slot: int) -> bool:
    """Return True if the datagram of a slot was longer than the slot."""
    header = slab.geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES
    return bool(slab.words[(header + _MSG_FLAGS_AT) >> 2] & _MSG_TRUNC)


_MSG_FLAGS_AT: Final = 48
"""Offset of `msg_flags` in a `struct mmsghdr` of 64-bit Linux."""
_MSG_TRUNC: Final = 0x20
"""Set in `msg_flags` if the datagram was longer than its slot."""
_length_of: Final = itemgetter(1)


def control_at(slab: Slab, slot: int) -> int:
    """Return the file offset of a slot's control message."""
    return slab.geometry.landing_controls_at + slot * lay.CONTROL_BYTES


def request_credentials(slab: Slab, slots: int) -> None:
    """Provide a control buffer for each of the first `slots` slots: the kernel stores the datagram's sender in it."""
    _control_lengths(slab, slots)[:] = memoryview(_CONTROL_LENGTH * slots)


def senders_of(slab: Slab, count: int) -> DatagramSenders | None:
    """Return the senders of the first `count` datagrams; None if the input did not call `request_credentials`.

    A sender is unknown (pid 0, `NO_USER`) if the kernel stored a control message of another kind in its place, because
    a service manager has set other options on the socket.
    """
    if not all(_control_lengths(slab, count).tolist()):
        return None
    first, step = slab.geometry.landing_controls_at, lay.CONTROL_BYTES
    senders = DatagramSenders(*(_column(slab.words, first + at, step, count).tolist() for at in _CREDENTIALS_AT))
    for slot, kind in enumerate(_column(slab.longs, first + _KIND_AT, step, count).tolist()):
        if kind != _CREDENTIALS_KIND:
            senders.pids[slot], senders.uids[slot], senders.gids[slot] = 0, NO_USER, NO_USER
    return senders


def _control_lengths(slab: Slab, slots: int) -> memoryview[int]:
    at = slab.geometry.landing_at + lay.LANDING_HEADERS + lay.MMSGHDR_CONTROL_LENGTH
    return _column(slab.longs, at, lay.MMSGHDR_BYTES, slots)


_CONTROL_LENGTH: Final = array("Q", [lay.CONTROL_BYTES])
_KIND_AT: Final = 8
"""Offset of level and type, two 32-bit fields, in a `struct cmsghdr`."""
_CREDENTIALS_KIND: Final = SCM_CREDENTIALS << 32 | SOL_SOCKET
"""Level and type of a control message with credentials, read as one 64-bit integer."""
_CREDENTIALS_AT: Final = (16, 20, 24)
"""Offsets of pid, uid and gid in a control message: `struct cmsghdr`, then `struct ucred`."""


def empty_slots(slab: Slab, slots: int) -> None:
    """Mark the first `slots` slots as empty."""
    _lengths(slab, slots)[:] = memoryview(_EMPTY * slots)


_EMPTY: Final = array("I", [lay.LANDING_EMPTY])
