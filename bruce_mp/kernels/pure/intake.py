"""Receive datagrams from a socket and append them to lanes, batch by batch.

The compiled kernel also commits a batch in which all messages are valid and find room, as `ProcessRow.commit_landed`
does.  The caller commits any other batch, and reports its discards.  The pure kernel leaves every batch to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
from bruce_mp.slab.landing_zone import landed_lengths

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.arrival_rate import Coalescing
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.kernels.pure.receive import DatagramReceiver
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["DatagramIntake", "IntakeResult", "PlainCounters"]


class PlainCounters(NamedTuple):
    """The numbers of the counters that a batch raises if all its messages are valid and find room."""

    received: int
    forwarded: int
    any_partition: int
    partition_key: int


class IntakeResult(NamedTuple):
    """The number of committed messages, and the last batch if the caller must commit it: its size and its result."""

    committed: int
    uncommitted: int
    ingested: Ingested | None


class DatagramIntake:
    """Receives the datagrams of one socket; a datagram of more than `max_size` bytes is malformed."""

    rate_type: ClassVar = ArrivalRate

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

        The call may wait for messages until `until_ms`, because a return after each batch costs more.  It returns when
        the lanes' `next_due_ms` or `publish_ms` has come, or if `next_due_ms` is None.  While messages come fast, it
        naps before the next receive.  The pure kernel receives one batch, and waits only in a nap before it.

        Raises OSError when the socket is broken.
        """
        if self._is_drained:
            self._rate.nap(now_ms, until_ms, self._lanes.next_due_ms)
        max_count = min(limit, self._slab.geometry.landing_slots)
        count = self._receiver.receive(descriptor, max_count)
        self._is_drained = count < max_count
        if not count:
            return IntakeResult(0, 0, None)
        self._row.begin_batch()
        self._rate.add(count, sum(landed_lengths(self._slab)))
        return IntakeResult(0, count, self._lanes.ingest_landed(count, self._max_size, now_ms))
