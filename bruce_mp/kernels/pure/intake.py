"""Receive datagrams from a socket and append them to lanes, batch by batch.

A batch is *committed* in one transaction that empties its landing slots and raises the counters.  The compiled kernel
commits a batch in which all messages are valid and find room, as `ProcessRow.commit_landed` does.  The caller commits
any other batch, and reports its discards.  The pure kernel leaves every batch to the caller.

One `recvmmsg()` receives a batch into the *landing zone*, a part of the slab with a slot for each datagram.  The
message headers, into which Linux stores the lengths, also lie there: see `slab/landing_zone.py`.  Linux stores the
credentials of the senders there as well, if the socket has SO_PASSCRED and the caller has called
`landing_zone.request_credentials`.  There is no room for further control messages, such as descriptors.  The pure
kernel calls `recvmmsg` through ctypes, because Python's socket module lacks it.
"""

from __future__ import annotations

import ctypes
import os
from errno import EAGAIN, EINTR
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.arrival_rate import Coalescing
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["DatagramIntake", "DatagramReceiver", "IntakeResult", "PlainCounters"]

_MSG_DONTWAIT: Final = 0x40
_HEADER: Final = Struct("<QIIQQQ")
"""The beginning of struct msghdr on 64-bit Linux: pointer to the name, its length, padding, pointer to the iovecs,
number of iovecs, pointer to the control message."""
_IOVEC: Final = Struct("<QQ")
"""struct iovec: address, length."""


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
        """Store addresses in a slot's message header, but keep the lengths if the slot has a datagram.

        `base` is the address of the slab, which differs between processes, so each new receiver stores the addresses.
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

        The landing zone must be empty.  Raises OSError if the socket is broken.
        """
        count: int = self._recvmmsg(descriptor, self._headers, min(limit, self._slots), _MSG_DONTWAIT, None)
        if count >= 0:
            return count
        error = ctypes.get_errno()
        if error in {EAGAIN, EINTR}:
            return 0
        raise OSError(error, os.strerror(error))


class PlainCounters(NamedTuple):
    """The numbers of the counters that a batch raises if all its messages are valid and find room."""

    received: int
    forwarded: int
    any_partition: int
    partition_key: int


class IntakeResult(NamedTuple):
    """The work that the intake has done, and the work that it leaves to the caller.

    `committed_count` is the number of messages that the intake has committed.  If the caller must commit the last
    batch, `uncommitted_count` is the number of messages in that batch, and `ingested` is its result.  If not, they are
    0 and None.
    """

    committed_count: int
    uncommitted_count: int
    ingested: Ingested | None


class DatagramIntake:
    """Receives the datagrams of one socket; a datagram of more than `max_size` bytes is malformed."""

    rate_type: ClassVar = ArrivalRate  # the compiled variant overrides it

    def __init__(
        self,
        slab: Slab,
        receiver: DatagramReceiver,
        lanes: Lanes,
        row: ProcessRow,
        *,
        max_size: int,
        counters: PlainCounters,
    ) -> None:
        self._slab = slab
        self._receiver = receiver
        self._lanes = lanes
        self._row = row
        self._max_size = max_size
        self._counters = counters
        self._rate = self.rate_type()
        self._is_drained = False
        """True if the last batch emptied the socket's queue."""

    def apply_config(self, coalescing: Coalescing) -> None:
        """Apply new limits for naps."""
        self._rate = self.rate_type(coalescing)

    def run(self, descriptor: int, limit: int, now_ms: int, until_ms: int) -> IntakeResult:
        """Receive at most `limit` messages from a socket, batch by batch.

        The call may wait for messages until `until_ms`, because a return after each batch would cost more CPU.  It
        returns earlier if the lanes' `next_due_ms` or `publish_ms` has come.  It does not wait if `next_due_ms` is
        None.  While messages come fast, it takes a nap before the next receive.  The pure kernel receives only one
        batch, and waits only in a nap before this receive.

        Raises OSError if the socket is broken.
        """
        if self._is_drained:
            self._rate.nap(now_ms, until_ms, self._lanes.next_due_ms)
        max_count = min(limit, self._slab.geometry.landing_slots)
        count = self._receiver.receive(descriptor, max_count)
        self._is_drained = count < max_count
        if not count:
            return IntakeResult(0, 0, None)
        self._row.begin_batch()
        self._rate.add(count, sum(landing_zone.landed_lengths(self._slab)))
        return IntakeResult(0, count, self._lanes.ingest_landed(count, self._max_size, now_ms))
