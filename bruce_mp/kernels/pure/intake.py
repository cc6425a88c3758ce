"""Datagrams from a socket into lanes, batch by batch.

A batch that needs no words is landed here as well: all of it sound, room for all of it.  Any other is left for the
caller to report and to land.  The pure kernel leaves every batch to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.kernels.pure.receive import Receiver
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

    def __init__(self, receiver: Receiver, lanes: Lanes, row: Row, longest: int, counters: PlainCounters) -> None:
        self._receiver = receiver
        self._lanes = lanes
        self._row = row
        self._longest = longest
        self._counters = counters

    def run(self, descriptor: int, limit: int, now_ms: int, until_ms: int) -> Taken:  # noqa: ARG002
        """Take in what waits at a socket, batch by batch, at most `limit` messages.

        Up to `until_ms` it may wait for them, as long as nobody waits for what it has: some runs are open and none is
        due, and those that are closed, because their chunk was full, have been only for some ms.  That costs less than
        to return for each message.  The pure kernel takes one batch and never waits.

        Raises OSError when the socket is broken.
        """
        count = self._receiver.receive(descriptor, limit)
        if not count:
            return Taken(0, 0, None)
        self._row.open_books()
        return Taken(0, count, self._lanes.ingest_landed(count, self._longest, now_ms))
