"""The flush groups of a stream connection: the messages between two barriers, and their outcomes.

The arrival number of a message contains the number of the message's flush group.  So the worker can count the outcome
of a message for the right group, whichever process settles the message.

The worker reads the outcomes from the records in its chunks, so the death of another process cannot hide them.  It
reads while a barrier or a unique attempt (`unique_attempts.py`) is pending, and before it reuses a chunk.  It counts
the outcomes of each run once, after all records of the run are settled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import CountedPosition, count_outcomes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["FlushGroup", "FlushGroupOwner", "FlushGroups", "OutcomeCounter"]

_MAX_NUMBER: Final = lay.ARRIVAL_SOURCES - 1
"""The largest number of a flush group that fits into an arrival number."""
CHUNKS_PER_POLL: Final = 512
"""Largest number of chunks that one poll inspects, so that the poll ends within a few milliseconds."""


@dataclass(slots=True, eq=False)
class FlushGroup:
    """A flush group: the messages between two barriers, or those of a unique attempt.

    `received` is the number of its messages, `delivered` and `discards` are the numbers of their outcomes.
    """

    number: int
    """The number in the arrival numbers of the messages; 0 = no outcomes are counted."""
    received: int = 0
    delivered: int = 0
    discards: Counter[DiscardReason] = field(default_factory=Counter)
    is_closed: bool = False
    """True if no messages follow, and no answer needs the counts of this group anymore."""
    spill_file_count: int = 0
    """Number of spill files of completed attempts that still have messages of the group."""

    @property
    def outstanding_count(self) -> int:
        """Return the number of messages without an outcome."""
        return self.received - self.delivered - self.discards.total()

    def discard(self, reason: DiscardReason, count: int = 1) -> None:
        self.discards[reason] += count


class FlushGroupOwner(Protocol):
    """The fields of a stream client (`stream_client.py`) that this module needs."""

    flush_group: FlushGroup
    earlier_groups: list[FlushGroup]
    user: int


class FlushGroups:
    """The flush groups of this worker by number.

    A number is free again once its group is *closed* (`is_closed`) and all messages of the group have outcomes.
    """

    def __init__(self) -> None:
        self._by_number: dict[int, FlushGroup] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, number: int) -> FlushGroup | None:
        return self._by_number.get(number)

    @property
    def is_full(self) -> bool:
        return len(self) >= _MAX_NUMBER

    def open(self) -> FlushGroup:
        """Create a flush group, with number 0 if no other number is free."""
        if self.is_full:
            return FlushGroup(0)
        self._last_number = self._last_number % _MAX_NUMBER + 1
        while self._last_number in self._by_number:
            self._last_number = self._last_number % _MAX_NUMBER + 1
        flush_group = self._by_number[self._last_number] = FlushGroup(self._last_number)
        return flush_group

    def start_next(self, client: FlushGroupOwner) -> None:
        """Start the next flush group of a client, unless the present group has no messages."""
        if client.flush_group.received:
            client.earlier_groups.append(client.flush_group)
            client.flush_group = self.open()

    def close(self, flush_group: FlushGroup) -> None:
        """Close a flush group, and free its number as soon as all its messages have outcomes."""
        flush_group.is_closed = True
        self.remove_if_finished(flush_group)

    def remove_if_finished(self, flush_group: FlushGroup) -> None:
        """Free the number of a closed flush group if all its messages have outcomes."""
        if flush_group.is_closed and not flush_group.outstanding_count:
            self._by_number.pop(flush_group.number, None)


class OutcomeCounter:
    """Counts the outcomes of messages in the chunks that this worker has opened.

    It ignores the chunks of a dead predecessor: the connections of their messages have ended.
    """

    def __init__(self, slab: Slab, flush_groups: FlushGroups) -> None:
        self._slab = slab
        self._flush_groups = flush_groups
        self._positions: dict[int, CountedPosition] = {}
        """The position of the first uncounted run in each chunk."""

    def on_opened(self, chunk: int) -> None:
        self._positions[chunk] = CountedPosition()

    def on_released(self, chunk: int) -> None:
        """Count the remaining outcomes in a chunk before the pool overwrites its records; all of them are settled."""
        if chunk in self._positions:
            self._count(chunk)
            del self._positions[chunk]

    def count_outcomes(self) -> None:
        """Count new outcomes in at most `CHUNKS_PER_POLL` chunks; the next call continues with the other chunks."""
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
        """Return the topic numbers of the first uncounted runs of at most `CHUNKS_PER_POLL` chunks."""
        found: set[int] = set()
        words = self._slab.words
        for chunk, position in islice(self._positions.items(), CHUNKS_PER_POLL):
            start = self._slab.chunk_at(chunk)
            if position.run < words[(start + lay.CHUNK_RUNS) >> 2]:
                found.add(words[(start + position.offset + lay.RUN_TOPIC) >> 2])
        found.discard(0)  # the number of a topic that is not in the topic table: its runs have its name
        return found
