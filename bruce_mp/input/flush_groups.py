"""The flush groups of a stream connection: the messages between two barriers, and their outcomes.

A flush group's messages carry its number in their arrival numbers. So the worker counts their outcomes for the group,
whichever process settles them.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason

__all__ = ["FlushGroup", "FlushGroupOwner", "FlushGroups"]

_MAX_NUMBER: Final = lay.ARRIVAL_SOURCES - 1
"""The largest number of a flush group that fits into an arrival number."""


@dataclass(slots=True, eq=False)
class FlushGroup:
    """The messages of a connection between two barriers, or of a unique attempt; with the counts of their outcomes."""

    number: int
    received: int = 0
    delivered: int = 0
    discards: Tally[DiscardReason] = field(default_factory=Tally)
    is_closed: bool = False
    """The connection has ended, or sends its next flush group."""
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
        """Return True if all flush group numbers are in use."""
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
        """Mark a flush group as closed to further messages."""
        flush_group.is_closed = True
        self.remove_if_finished(flush_group)

    def remove_if_finished(self, flush_group: FlushGroup) -> None:
        """Remove a flush group that is closed and finished."""
        if flush_group.is_closed and not flush_group.outstanding:
            self._by_number.pop(flush_group.number, None)
