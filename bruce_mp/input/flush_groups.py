"""The flush groups of a stream connection: the messages between two barriers, and their outcomes.

A flush group's messages carry its number in their arrival numbers. So the worker counts their outcomes for the group,
whichever process settles them.

No other process reports outcomes to a worker, so the death of another process cannot hide them.  The worker reads the
state words of its chunks while a barrier or a unique attempt (a fenced attempt with a name, see `unique_attempts.py`)
is pending, and before it reuses a chunk.  It counts each run once, when the run is settled, and keeps its position in
each chunk until the chunk is reused.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import CountedPosition, count_outcomes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["FlushGroup", "FlushGroupOwner", "FlushGroups", "Outcomes"]

_MAX_NUMBER: Final = lay.ARRIVAL_SOURCES - 1
"""The largest number of a flush group that fits into an arrival number."""
CHUNKS_PER_POLL: Final = 512
"""Largest number of chunks that one poll inspects, so that it ends within a few milliseconds."""


@dataclass(slots=True, eq=False)
class FlushGroup:
    """The messages of a connection between two barriers or of a unique attempt, with the counts of their outcomes."""

    number: int
    received: int = 0
    delivered: int = 0
    discards: Tally[DiscardReason] = field(default_factory=Tally)
    is_closed: bool = False
    """The connection has ended, or its totals include this finished group."""
    spill_files: int = 0
    """Spill files of complete attempts that have messages of the group."""

    @property
    def outstanding(self) -> int:
        """Return the number of messages without an outcome."""
        return self.received - self.delivered - self.discards.total()

    def discard(self, reason: DiscardReason, count: int = 1) -> None:
        """Count messages that were received and are discarded."""
        self.discards[reason] += count


class FlushGroupOwner(Protocol):
    """The fields of a stream client (`stream_client.py`) that its flush groups need."""

    flush_group: FlushGroup
    unfinished_groups: list[FlushGroup]
    user: int


class FlushGroups:
    """The flush groups of this worker by number; a number is free again once its group is closed and finished."""

    def __init__(self) -> None:
        self._by_number: dict[int, FlushGroup] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, number: int) -> FlushGroup | None:
        return self._by_number.get(number)

    @property
    def is_full(self) -> bool:
        return len(self) >= _MAX_NUMBER

    def open(self) -> FlushGroup:
        """Create a flush group.  If no number is free, it gets number 0, for which no outcomes are counted."""
        if self.is_full:
            return FlushGroup(0)
        self._last = self._last % _MAX_NUMBER + 1
        while self._last in self._by_number:
            self._last = self._last % _MAX_NUMBER + 1
        flush_group = self._by_number[self._last] = FlushGroup(self._last)
        return flush_group

    def start_next(self, client: FlushGroupOwner) -> None:
        """Start the next flush group of a client, unless the present one has no messages."""
        if client.flush_group.received:
            client.unfinished_groups.append(client.flush_group)
            client.flush_group = self.open()

    def close(self, flush_group: FlushGroup) -> None:
        flush_group.is_closed = True
        self.remove_if_finished(flush_group)

    def remove_if_finished(self, flush_group: FlushGroup) -> None:
        if flush_group.is_closed and not flush_group.outstanding:
            self._by_number.pop(flush_group.number, None)


class Outcomes:
    """Counts the outcomes in the chunks that this worker opened; a predecessor's chunks have no flush groups here."""

    def __init__(self, slab: Slab, flush_groups: FlushGroups) -> None:
        self._slab = slab
        self._flush_groups = flush_groups
        self._positions: dict[int, CountedPosition] = {}
        """The first uncounted run of each chunk."""

    def on_opened(self, chunk: int) -> None:
        self._positions[chunk] = CountedPosition()

    def on_released(self, chunk: int) -> None:
        """Count the remaining outcomes of a settled chunk before its release."""
        if chunk in self._positions:
            self._count(chunk)
            del self._positions[chunk]

    def count_outcomes(self) -> None:
        """Count new outcomes in a bounded number of chunks, in rotation."""
        needs_rotation = len(self._positions) > CHUNKS_PER_POLL
        for chunk in list(islice(self._positions, CHUNKS_PER_POLL)):
            self._count(chunk)
            if needs_rotation:
                self._positions[chunk] = self._positions.pop(chunk)

    def _count(self, chunk: int) -> None:
        position, counts = count_outcomes(self._slab, chunk, self._positions[chunk])
        self._positions[chunk] = position
        for (number, state, reason), count in counts.items():
            flush_group = self._flush_groups.find(number)
            if flush_group is None:  # number 0 (messages without a flush group), or a damaged number
                continue
            if state == RunState.DELIVERED:
                flush_group.delivered += count
            else:
                flush_group.discard(DiscardReason(reason), count)
            self._flush_groups.remove_if_finished(flush_group)

    def unsettled_topics(self) -> set[int]:
        """Return the topic number of the first uncounted run in each of a bounded number of chunks."""
        found: set[int] = set()
        words = self._slab.words
        for chunk, position in islice(self._positions.items(), CHUNKS_PER_POLL):
            start = self._slab.chunk_at(chunk)
            if position.run < words[(start + lay.CHUNK_RUNS) >> 2]:
                found.add(words[(start + position.at + lay.RUN_TOPIC) >> 2])
        found.discard(0)  # runs with the name of a topic that had no number
        return found
