"""Tickets: the order in which an input hands runs over, which makes a sweep a snapshot.

A starting router *sweeps* the slab for runs to take over, while inputs hand further runs over.  The router could find a
run and miss an older run of the same topic, if it read the older run's chunk before that run's hand-over.  It would
then send the newer messages first.  So each run has a larger *ticket* than all runs that its input handed over before,
and the input's row has the last ticket.  The router reads the rows before its sweep, and ignores runs with larger
tickets.  It takes these runs over later: the input also announces each run to the router in a frame.

The ticket of a run is the previous run's ticket plus the run's number of records.  So the ticket in the row is the
number of records that the input has handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.slab.file import Slab

__all__ = [
    "HandoverTickets",
    "InputProgress",
    "JournalProgress",
    "completing_attempt",
    "input_progress",
    "last_completed_attempt",
    "last_tickets",
    "store_journaled_tickets",
]


class HandoverTickets:
    """The ticket counter of the input with process row `row`."""

    def __init__(self, slab: Slab, row: int) -> None:
        self._slab = slab
        self.last_at = slab.row_at(row) + lay.ROW_TICKET
        """File offset of the last ticket, in the input's row."""

    def hand_over(self, run_at: int) -> None:
        """Hand the run at file offset `run_at` over to the router.

        The order of the stores is the run's ticket, its state word, the row's ticket.
        """
        ticket = self._slab.longs[self.last_at >> 3] + self._slab.words[(run_at + lay.RUN_COUNT) >> 2]
        self._slab.longs[(run_at + lay.RUN_TICKET) >> 3] = ticket
        self._slab.words[run_at >> 2] = RunState.FILLED
        self._slab.longs[self.last_at >> 3] = ticket

    def catch_up(self, ticket: int) -> None:
        """Raise the row's ticket to at least `ticket`.

        The row's ticket is smaller than the ticket of a run if the input died within `hand_over`, or if the row takes
        over the run's chunk from another row.
        """
        self._slab.longs[self.last_at >> 3] = max(self._slab.longs[self.last_at >> 3], ticket)


def store_journaled_tickets(slab: Slab, tickets: Mapping[int, int]) -> None:
    """Store, for each input row, the ticket up to which the journal has all held runs of the row."""
    for row, ticket in tickets.items():
        slab.longs[_journaled_index(row)] = ticket


class JournalProgress:
    """How far the journal process has copied the runs of the input of row `row` to the disk."""

    def __init__(self, slab: Slab, row: int) -> None:
        self._slab = slab
        self._row = row

    @property
    def last_handed_over(self) -> int:
        """Return the ticket of the last run that the input handed over, journaled or not."""
        return _last_ticket(self._slab, self._row)

    def has(self, ticket: int) -> bool:
        """Return True if the journal has all held runs of the input with tickets up to `ticket`."""
        return self._slab.longs[_journaled_index(self._row)] >= ticket


def _journaled_index(row: int) -> int:
    return (lay.SUPER_JOURNALED >> 3) + row - lay.ROW_FIRST_INPUT


class InputProgress(NamedTuple):
    """The progress of an input's hand-overs: the last ticket, and the fenced attempt in progress.

    `attempt` is the number of the attempt that has perhaps some, but not all runs handed over; 0 = none.
    """

    ticket: int
    attempt: int


def input_progress(slab: Slab) -> dict[int, InputProgress]:
    """Return the progress of each input row."""
    return {row: _progress_of(slab, row) for row in lay.INPUT_ROWS}


def _progress_of(slab: Slab, row: int) -> InputProgress:
    """Read the ticket and the attempt; read both again if the input has handed a run over in between."""
    while True:
        found = InputProgress(_last_ticket(slab, row), completing_attempt(slab, row))
        if _last_ticket(slab, row) == found.ticket:
            return found


def completing_attempt(slab: Slab, row: int) -> int:
    """Return the number of the fenced attempt that the input of a row is handing over, 0 for none."""
    return slab.words[(slab.row_at(row) + lay.ROW_COMPLETING) >> 2]


def last_completed_attempt(slab: Slab, row: int) -> int:
    """Return the number of the last attempt that the input of a row completed, 0 for none.

    If the input has died, call `fences.finish_completion` first.  The attempts of the next worker have larger numbers.
    """
    return slab.words[(slab.row_at(row) + lay.ROW_LAST_COMPLETED) >> 2]


def last_tickets(slab: Slab) -> dict[int, int]:
    """Return the last ticket of each input row."""
    return {row: _last_ticket(slab, row) for row in lay.INPUT_ROWS}


def _last_ticket(slab: Slab, row: int) -> int:
    return slab.longs[(slab.row_at(row) + lay.ROW_TICKET) >> 3]
