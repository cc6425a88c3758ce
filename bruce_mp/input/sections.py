"""The sections of a stream connection: the messages between two barriers, and their outcomes.

A section's messages carry its number in their arrival numbers, so the worker counts their outcomes for it, whichever
process settles them.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason

__all__ = ["ConnectionSection", "SectionOwner"]


@dataclass(slots=True, eq=False)
class ConnectionSection:
    """The messages of one connection between two barriers, with the counts of their outcomes."""

    number: int
    received: int = 0
    delivered: int = 0
    discards: Tally[DiscardReason] = field(default_factory=Tally)
    is_closed: bool = False
    """The connection has ended, or sends its next section."""
    spill_files: int = 0
    """Spill files of complete attempts that have messages of the section."""

    @property
    def outstanding(self) -> int:
        """Messages without a final outcome."""
        return self.received - self.delivered - self.discards.total()

    def discard(self, reason: DiscardReason, count: int = 1) -> None:
        """Count messages that were received and are discarded."""
        self.discards[reason] += count


class SectionOwner(Protocol):
    """The client of a connection (`clients.py`), as far as its sections need it."""

    section: ConnectionSection
    unfinished_sections: list[ConnectionSection]
    user: int
