"""Datagrams from a socket into lanes, batch by batch.

A batch that needs no words is landed here as well: all of it sound, room for all of it.  Any other is left for the
caller to report and to land.  The pure kernel leaves every batch to the caller.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bruce_mp.kernels.pure.pace import Pace
from bruce_mp.slab.landing import landed_lengths

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.kernels.pure.pace import Naps
    from bruce_mp.kernels.pure.receive import Receiver
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row

__all__ = ["Intake", "PlainCounters", "Taken"]


class PlainCounters(NamedTuple):
    """The counters that a batch without bad messages raises."""

    received: int
    forwarded: int
    any_partition: int
    partition_key: int


class Taken(NamedTuple):
    """What was taken: `landed` messages, and `waiting` in a batch that is to be landed, unless `ingested` is None."""

    landed: int
    waiting: int
    ingested: Ingested | None


class Intake:
    """Takes datagrams of at most `longest` bytes in."""

    pace_type: ClassVar = Pace

    def __init__(
        self, slab: Slab, receiver: Receiver, lanes: Lanes, row: Row, *, longest: int, counters: PlainCounters
    ) -> None:
        self._slab = slab
        self._receiver = receiver
        self._lanes = lanes
        self._row = row
        self._longest = longest
        self._counters = counters
        self._pace = self.pace_type()
        self._is_drained = False
        """Nothing waited behind the last batch."""

    def go_by(self, naps: Naps) -> None:
        """From now on it may sleep like this where it may wait."""
        self._pace = self.pace_type(naps)

    def run(self, descriptor: int, limit: int, now_ms: int, until_ms: int) -> Taken:
        """Take in what waits at a socket, batch by batch, at most `limit` messages.

        Up to `until_ms` it may wait for them, as long as nobody waits for what it has: some runs are open and none is
        due, and those that are closed, because their chunk was full, have been only for some ms.  That costs less than
        to return for each message.  While messages come fast it sleeps before it looks for more.  The pure kernel takes
        one batch, and does not wait for it but for such a nap.

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
        """Sleep if that pays, and nothing is due before."""
        due_ms = self._lanes.next_due_ms
        left_ms = (until_ms if due_ms is None else min(until_ms, due_ms)) - now_ms
        nap_us = self._pace.nap_us(time.monotonic_ns() // 1000)
        if 0 < nap_us < left_ms * 1000:
            time.sleep(nap_us / 1_000_000)
