"""The outcomes of stream clients' messages, read from the chunks that this worker filled.

No other process reports outcomes to a worker, so the death of another process cannot hide them.  The worker reads the
state words of its chunks while a barrier or a unique attempt is pending, and before it reuses a chunk.  It counts each
run once, when the run is settled, and keeps its position in each chunk until the chunk is reused.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import CountedPosition, count_outcomes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from bruce_mp.input.flush_groups import FlushGroups
    from bruce_mp.slab.file import Slab

__all__ = ["Outcomes"]

CHUNKS_PER_POLL: Final = 512
"""Largest number of chunks that one poll inspects, so that it ends within a few milliseconds."""


class Outcomes:
    """Counts the outcomes in the chunks that this worker opened; a predecessor's chunks have no flush groups here."""

    def __init__(self, slab: Slab, flush_groups: FlushGroups) -> None:
        self._slab = slab
        self._flush_groups = flush_groups
        self._positions: dict[int, CountedPosition] = {}
        """The first uncounted run of each chunk."""

    def on_opened(self, chunk: int) -> None:
        """Begin to count the outcomes of an opened chunk."""
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
            if flush_group is None:  # the number is 0, for messages without a flush group, or damaged
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
