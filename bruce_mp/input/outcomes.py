"""What became of the messages that stream clients sent, found in the chunks that this worker filled.

Nobody tells a worker of outcomes, so nobody's death can keep it from them: it reads the words of its own chunks, when
somebody asks and at the latest before it reuses a chunk.  Each run is counted once, when it is settled; how far a chunk
is counted is remembered as long as its present life lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.input.clients import Section
from bruce_mp.kernels import Place, tally
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["Outcomes", "Sections"]

_MOST: Final = lay.ARRIVAL_SOURCES - 1
LOOKS: Final = 512
"""Chunks that are looked at in one go."""


class Sections:
    """The sections of this worker by number; a number is used again when nothing of its section is outstanding."""

    def __init__(self) -> None:
        self._by_number: dict[int, Section] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, number: int) -> Section | None:
        """The section with a number, if there is one."""
        return self._by_number.get(number)

    @property
    def are_exhausted(self) -> bool:
        """Whether no further section can be told from the others."""
        return len(self) >= _MOST

    def begin(self) -> Section:
        """A new section; where none can be told from the others any more, one whose outcomes nobody counts."""
        if self.are_exhausted:
            return Section(0)
        self._last = self._last % _MOST + 1
        while self._last in self._by_number:
            self._last = self._last % _MOST + 1
        section = self._by_number[self._last] = Section(self._last)
        return section

    def leave(self, section: Section) -> None:
        """Nothing will be sent in a section any more."""
        section.is_left = True
        self.look(section)

    def look(self, section: Section) -> None:
        """Forget a section that was left and is finished."""
        if section.is_left and not section.outstanding:
            self._by_number.pop(section.number, None)


class Outcomes:
    """Watches the chunks of one worker, those that it opened itself."""

    def __init__(self, slab: Slab, sections: Sections) -> None:
        self._slab = slab
        self._sections = sections
        self._counted: dict[int, Place] = {}

    def opened(self, chunk: int) -> None:
        """A chunk begins a new life."""
        self._counted[chunk] = Place()

    def released(self, chunk: int) -> None:
        """A chunk, whose messages are all settled, is about to end its life."""
        if chunk in self._counted:
            self._count(chunk)
            del self._counted[chunk]

    def look(self) -> bool:
        """Look at some chunks, in turn; whether that was news."""
        found = False
        for _ in range(min(LOOKS, len(self._counted))):
            chunk = next(iter(self._counted))
            found |= self._count(chunk)
            self._counted[chunk] = self._counted.pop(chunk)
        return found

    def _count(self, chunk: int) -> bool:
        place, counts = tally(self._slab, chunk, self._counted[chunk])
        self._counted[chunk] = place
        for (number, state, reason), count in counts.items():
            section = self._sections.find(number)
            if section is None:  # only where memory is damaged
                continue
            if state == State.DELIVERED:
                section.delivered += count
            else:
                section.discard(DiscardReason(reason), count)
            self._sections.look(section)
        return bool(counts)

    def topics(self) -> set[int]:
        """The numbers of topics whose messages are not settled yet, as far as some looks show."""
        found: set[int] = set()
        words = self._slab.words
        for chunk, place in list(self._counted.items())[:LOOKS]:
            start = self._slab.chunk_at(chunk)
            if place.run < words[(start + lay.CHUNK_RUNS) >> 2]:
                found.add(words[(start + place.at + lay.RUN_TOPIC) >> 2])
        found.discard(0)
        return found
