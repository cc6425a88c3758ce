"""Receive a batch of datagrams into the landing zone with one `recvmmsg()`.

The message headers, into which Linux stores the lengths, lie in the landing zone: see `slab/landing_zone.py`.  Linux
also stores the credentials of senders there, if the socket has SO_PASSCRED and the caller has called
`landing_zone.request_credentials`.  There is no room for further control messages, such as descriptors.

The module calls `recvmmsg` through ctypes, because Python's socket module lacks it.
"""

from __future__ import annotations

import ctypes
import os
from errno import EAGAIN, EINTR
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["DatagramReceiver"]

_MSG_DONTWAIT: Final = 0x40
_HEADER: Final = Struct("<QIIQQQ")
"""The beginning of struct msghdr on 64-bit Linux: name, its length, padding, iovecs, their number, control message"""
_IOVEC: Final = Struct("<QQ")
"""struct iovec: address, length"""


class DatagramReceiver:
    """Receives into the landing zone of a slab; only one process at a time may have a receiver."""

    def __init__(self, slab: Slab) -> None:
        self._slots = slab.geometry.landing_slots
        base = ctypes.addressof(ctypes.c_char.from_buffer(slab.view))
        self._headers = ctypes.c_void_p(base + slab.geometry.landing_at + lay.LANDING_HEADERS)
        self._recvmmsg = ctypes.CDLL(None, use_errno=True).recvmmsg
        self._recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
        for slot in range(self._slots):
            self._store_addresses(slab, base, slot)

    @staticmethod
    def _store_addresses(slab: Slab, base: int, slot: int) -> None:
        """Store addresses in a slot's message header, but keep the lengths of a landed datagram.

        `base` is the address of the slab, which differs between processes.
        """
        geometry = slab.geometry
        iovec = geometry.landing_iovecs_at + slot * lay.IOVEC_BYTES
        _IOVEC.pack_into(slab.view, iovec, base + landing_zone.slot_at(slab, slot), geometry.landing_slot_size)
        header = geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES
        _HEADER.pack_into(slab.view, header, 0, 0, 0, base + iovec, 1, base + landing_zone.control_at(slab, slot))
        if slab.words[(header + lay.MMSGHDR_LENGTH) >> 2] == lay.LANDING_EMPTY:
            slab.longs[(header + lay.MMSGHDR_CONTROL_LENGTH) >> 3] = 0  # no room for control messages

    def receive(self, descriptor: int, limit: int) -> int:
        """Receive at most `limit` datagrams without waiting, and return their number.

        The landing zone must be empty.  Raises OSError when the socket is broken.
        """
        count: int = self._recvmmsg(descriptor, self._headers, min(limit, self._slots), _MSG_DONTWAIT, None)
        if count >= 0:
            return count
        error = ctypes.get_errno()
        if error in {EAGAIN, EINTR}:
            return 0
        raise OSError(error, os.strerror(error))
