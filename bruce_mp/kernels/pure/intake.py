"""Datagrams from a socket into lanes, batch by batch.

The compiled kernel also lands a batch in which all messages are sound and find room.  It leaves any other batch to the
caller, which reports and lands it.  The pure kernel leaves every batch to the caller.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
from bruce_mp.slab.landing import landed_lengths

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.arrival_rate import Coalescing
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.kernels.pure.receive import DatagramReceiver
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["DatagramIntake", "PlainCounters", "Taken"]


class PlainCounters(NamedTuple):
    """The counters that a batch without bad messages raises."""

    received: int
    forwarded: int
    any_partition: int
    partition_key: int


class Taken(NamedTuple):
    """Numbers of `landed` messages and of those `waiting` in a batch to be landed; without one `ingested` is None."""

    landed: int
    waiting: int
    ingested: Ingested | None


class DatagramIntake:
    """Receives datagrams of at most `longest` bytes."""

    pace_type: ClassVar = ArrivalRate

    def __init__(
        self,
        slab: Slab,
        receiver: DatagramReceiver,
        lanes: Lanes,
        row: ProcessRow,
        *,
        longest: int,
        counters: PlainCounters,
    ) -> None:
        self._slab = slab
        self._receiver = receiver
        self._lanes = lanes
        self._row = row
        self._longest = longest
        self._counters = counters
        self._pace = self.pace_type()
        self._is_drained = False
        """True if the last batch emptied the socket's queue."""

    def apply_config(self, coalescing: Coalescing) -> None:
        """Apply new limits for naps."""
        self._pace = self.pace_type(coalescing)

    def run(self, descriptor: int, limit: int, now_ms: int, until_ms: int) -> Taken:
        """Receive the messages that wait at a socket, batch by batch, at most `limit` messages.

        The call may wait for messages until `until_ms`, while no received message needs attention: some runs are open
        and none is due, and no closed run has reached its tick.  That costs less than a return for each
        message.  While messages come fast, the kernel naps before the next receive.  The pure kernel receives one batch
        and waits only in such a nap.

        Raises OSError when the socket is broken.
        """
        if self._is_drained:
            self._nap(now_ms, until_ms)
        most = min(limit, self._slab.geometry.landing_slots)
        count = self._receiver.receive(descriptor, most)
        self._is_drained = count < most
        if not count:
            return Taken(0, 0, None)
        self._row.open_books()
        self._pace.add(count, sum(landed_lengths(self._slab)))
        return Taken(0, count, self._lanes.ingest_landed(count, self._longest, now_ms))

    def _nap(self, now_ms: int, until_ms: int) -> None:
        """Sleep if that saves CPU and nothing is due earlier."""
        due_ms = self._lanes.next_due_ms
        left_ms = (until_ms if due_ms is None else min(until_ms, due_ms)) - now_ms
        coalescing_us = self._pace.coalescing_us(time.monotonic_ns() // 1000)
        if 0 < coalescing_us < left_ms * 1000:
            time.sleep(coalescing_us / 1_000_000)
