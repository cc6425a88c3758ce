"""Tickets: the order in which an input hands its runs over, so that a sweep can take a snapshot.

A router that sweeps the slab while an input goes on filling it could find a run and miss an older one of the same
lane: it looked at the older one's chunk before that run was handed over.  So each run gets the next ticket, and the
input's row says which ticket was given out last.  Who reads that first and then sweeps finds every run with a ticket up
to it, and leaves the later ones to their doorbells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["TicketOffice", "last_tickets"]


def _at(slab: Slab, row: int) -> int:
    return slab.geometry.rows_at + row * lay.ROW_BYTES + lay.ROW_TICKET


class TicketOffice:
    """Hands runs of an input over; one in each input process.  `row` is the input's."""

    def __init__(self, slab: Slab, row: int) -> None:
        self._slab = slab
        self.row_at = _at(slab, row)
        """File offset of the ticket that was given out last."""

    def hand_over(self, run_at: int) -> None:
        """Make the run at a file offset the router's: ticket, then word, then the row."""
        ticket = self._slab.longs[self.row_at >> 3] + 1
        self._slab.longs[(run_at + lay.RUN_TICKET) >> 3] = ticket
        self._slab.words[run_at >> 2] = State.FILLED
        self._slab.longs[self.row_at >> 3] = ticket

    def catch_up(self, ticket: int) -> None:
        """A predecessor may have died after it handed over a run with this ticket and before its row said so."""
        self._slab.longs[self.row_at >> 3] = max(self._slab.longs[self.row_at >> 3], ticket)


def last_tickets(slab: Slab) -> dict[int, int]:
    """The last ticket of each input row."""
    rows = range(lay.ROW_FIRST_INPUT, lay.ROW_FIRST_INPUT + lay.INPUT_ROWS)
    return {row: slab.longs[_at(slab, row) >> 3] for row in rows}
