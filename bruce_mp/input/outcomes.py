"""The outcomes of stream clients' messages, read from the chunks that this worker filled.

No other process reports outcomes to a worker, so the death of another process cannot hide them.  The worker reads the
state words of its chunks while a barrier is pending, and before it reuses a chunk.  It counts each run once, when the
run is settled, and keeps its position in each chunk until the chunk is reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.input.sections import ConnectionSection
from bruce_mp.kernels import CountedPosition, count_outcomes
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from bruce_mp.input.sections import SectionOwner
    from bruce_mp.slab.file import Slab

__all__ = ["Outcomes", "Sections"]

_MOST: Final = lay.ARRIVAL_SOURCES - 1
CHUNKS_PER_POLL: Final = 512
"""Largest number of chunks that one poll inspects."""


class Sections:
    """The sections of this worker by number; a number is free again once its section is closed and finished."""

    def __init__(self) -> None:
        self._by_number: dict[int, ConnectionSection] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, number: int) -> ConnectionSection | None:
        return self._by_number.get(number)

    @property
    def are_exhausted(self) -> bool:
        """Return True if all section numbers are in use."""
        return len(self) >= _MOST

    def open(self) -> ConnectionSection:
        """Create a section; without a free number, return one with number 0, for which no outcomes are counted."""
        if self.are_exhausted:
            return ConnectionSection(0)
        self._last = self._last % _MOST + 1
        while self._last in self._by_number:
            self._last = self._last % _MOST + 1
        section = self._by_number[self._last] = ConnectionSection(self._last)
        return section

    def start_next(self, client: SectionOwner) -> None:
        """Start the next section of a client, unless the present one has no messages."""
        if client.section.received:
            client.unfinished_sections.append(client.section)
            client.section = self.open()

    def close(self, section: ConnectionSection) -> None:
        """Mark a section as closed to further messages."""
        section.is_closed = True
        self.release_if_finished(section)

    def release_if_finished(self, section: ConnectionSection) -> None:
        """Remove a section that is closed and finished."""
        if section.is_closed and not section.outstanding:
            self._by_number.pop(section.number, None)


class Outcomes:
    """Counts the outcomes in the chunks that this worker opened; a predecessor's chunks have no sections here."""

    def __init__(self, slab: Slab, sections: Sections) -> None:
        self._slab = slab
        self._sections = sections
        self._counted: dict[int, CountedPosition] = {}

    def on_opened(self, chunk: int) -> None:
        """Begin to count the outcomes of an opened chunk."""
        self._counted[chunk] = CountedPosition()

    def on_released(self, chunk: int) -> None:
        """Count the remaining outcomes of a settled chunk before its release."""
        if chunk in self._counted:
            self._count(chunk)
            del self._counted[chunk]

    def count_outcomes(self) -> bool:
        """Inspect a bounded number of chunks in rotation; return True if any new outcome was found."""
        found = False
        for _ in range(min(CHUNKS_PER_POLL, len(self._counted))):
            chunk = next(iter(self._counted))
            found |= self._count(chunk)
            self._counted[chunk] = self._counted.pop(chunk)
        return found

    def _count(self, chunk: int) -> bool:
        position, counts = count_outcomes(self._slab, chunk, self._counted[chunk])
        self._counted[chunk] = position
        for (number, state, reason), count in counts.items():
            section = self._sections.find(number)
            if section is None:  # 0, without a section; others only in damaged memory
                continue
            if state == RunState.DELIVERED:
                section.delivered += count
            else:
                section.discard(DiscardReason(reason), count)
            self._sections.release_if_finished(section)
        return bool(counts)

    def topics(self) -> set[int]:
        """Return the numbers of topics with unsettled messages, from a bounded number of chunks."""
        found: set[int] = set()
        words = self._slab.words
        for chunk, position in list(self._counted.items())[:CHUNKS_PER_POLL]:
            start = self._slab.chunk_at(chunk)
            if position.run < words[(start + lay.CHUNK_RUNS) >> 2]:
                found.add(words[(start + position.at + lay.RUN_TOPIC) >> 2])
        found.discard(0)
        return found
