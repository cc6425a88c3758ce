"""Held messages by stage, computed from the process rows alone, so that the cost does not grow with their number.

In the transaction that stores the state words of messages, a process also counts in its row the messages that it moves
to another stage.  The number of messages in a stage is the number that came in less the number that went out:

    input      received - discarded - spilled - handed over (the ticket of an input's row)
    router     handed over + returned - assigned - discarded
    queued     assigned - sent - returned without being sent
    in_flight  sent - returned after being sent - delivered - discarded

Each row is read between two transactions of its process.  A transaction changes both sides of *received = delivered +
discarded + held* by the same number, so the equation holds even if rows are read at different times.  The rows of a
slab from an older release may lack these counts.  Then `pipeline/stage_counts.py` counts the messages of each stage by
their state words, and stores a *base* for the stage: the number to add to the difference above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import redo_counters
from bruce_mp.telemetry.counters import BOOK_COUNTER_COUNT, FIRST_DISCARD, Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["SPILLED", "STAGE_NAMES", "STAGE_OF_STATE", "RowReading", "flows", "held_by_stage", "read_rows", "used_rows"]

STAGE_OF_STATE: Final[dict[RunState, str]] = {
    RunState.OPEN: "input",
    RunState.FILLED: "router",
    RunState.ROUTED: "router",
    RunState.ROUTED_SENT: "router",
    RunState.RETURNED: "router",
    RunState.RETURNED_SENT: "router",
    RunState.ASSIGNED: "queued",
    RunState.ASSIGNED_SENT: "queued",
    RunState.QUEUED: "queued",
    RunState.IN_FLIGHT: "in_flight",
}
"""The stage of a held message by its state; *queued* and *in_flight* are the two stages of a dispatcher."""
SPILLED: Final = "spill"
"""The stage of messages in spill files, which are not in the slab."""

STAGE_NAMES: Final = tuple(dict.fromkeys(STAGE_OF_STATE.values()))
"""The stages in the slab, in the order in which a message passes through them."""
_MAX_READINGS: Final = 1000
"""The maximum number of attempts to read a row that its process keeps changing; each takes microseconds."""


class RowReading(NamedTuple):
    """A reading of a process row.

    `counters` are the counters of the books by number.  `ticket` is the number of messages that an input has handed
    over.  `spill_in` messages went into spill files, `spill_out` came out of them.  `has_open_batch` is True while an
    input appends a batch that it has not counted yet.  `is_consistent` is False if the process changed the row during
    every attempt to read it.
    """

    counters: list[int]
    ticket: int
    spill_in: int
    spill_out: int
    has_open_batch: bool
    is_consistent: bool

    @property
    def spilled(self) -> int:
        return self.spill_in - self.spill_out

    @property
    def settled(self) -> int:
        """Return the number of messages that the process delivered or discarded."""
        return self.counters[Counter.MsgDelivered] + sum(self.counters[FIRST_DISCARD:])


_UNUSED_ROW: Final = RowReading([0] * BOOK_COUNTER_COUNT, 0, 0, 0, has_open_batch=False, is_consistent=True)
"""The reading of every row that never had a process.  Most rows are unused; `used_rows` omits them to save time."""
_UNUSED_ROW_BYTES: Final = bytes(lay.ROW_COUNTERS + 8 * BOOK_COUNTER_COUNT)
"""The bytes of an unused row up to the end of the counters of the books."""


def used_rows(rows: Iterable[RowReading]) -> list[RowReading]:
    """Return the readings of rows that had a process."""
    return [row for row in rows if row is not _UNUSED_ROW]


def read_rows(slab: Slab) -> list[RowReading]:
    """Read each row between two of its transactions."""
    # Rows of later stages come first: otherwise they could count a message that the rows before them do not count yet.
    order = (*slab.geometry.dispatcher_rows, lay.ROW_ROUTER, *lay.INPUT_ROWS, lay.ROW_STATUS, lay.ROW_SUPERVISOR)
    readings = {row: _read_row(slab, row) for row in order}
    return [readings[row] for row in range(slab.geometry.rows)]


def _read_row(slab: Slab, row: int) -> RowReading:
    for _ in range(_MAX_READINGS):
        before = version, redo_word = _version_and_redo_word(slab, row)
        if version == redo_word == 0 and _is_unused(slab, row):
            return _UNUSED_ROW
        reading = _read_once(slab, row, is_redo_valid=redo_word != 0)
        if _version_and_redo_word(slab, row) == before:
            return reading
    return reading._replace(is_consistent=False)


def _is_unused(slab: Slab, row: int) -> bool:
    offset = slab.row_at(row)
    counter_0 = (offset + lay.ROW_COUNTERS) >> 3
    has_spilled = slab.longs[counter_0 + lay.SPILL_IN] or slab.longs[counter_0 + lay.SPILL_OUT]
    return not has_spilled and bytes(slab.view[offset : offset + len(_UNUSED_ROW_BYTES)]) == _UNUSED_ROW_BYTES


def _version_and_redo_word(slab: Slab, row: int) -> tuple[int, int]:
    """Return the row's version, and the word that is not 0 while the row's redo record is valid."""
    offset = slab.row_at(row)
    return slab.longs[(offset + lay.ROW_VERSION) >> 3], slab.words[(offset + lay.ROW_REDO) >> 2]


def _read_once(slab: Slab, row: int, *, is_redo_valid: bool) -> RowReading:
    """Read a row. If its redo record is valid, read the values that the row has after the recorded transaction."""
    offset = slab.row_at(row)
    counter_0 = (offset + lay.ROW_COUNTERS) >> 3
    new_values = redo_counters(slab, row) if is_redo_valid else {}
    counters = slab.longs[counter_0 : counter_0 + BOOK_COUNTER_COUNT].tolist()
    for counter, value in new_values.items():
        if counter < BOOK_COUNTER_COUNT:
            counters[counter] = value
    spill_in, spill_out = (
        new_values.get(counter, slab.longs[counter_0 + counter]) for counter in (lay.SPILL_IN, lay.SPILL_OUT)
    )
    # Outside a transaction, an odd version means that an input appends a batch that it has not counted yet.
    has_open_batch = not is_redo_valid and slab.longs[(offset + lay.ROW_VERSION) >> 3] & 1 != 0
    ticket = slab.longs[(offset + lay.ROW_TICKET) >> 3]
    return RowReading(counters, ticket, spill_in, spill_out, has_open_batch, is_consistent=True)


def held_by_stage(rows: Sequence[RowReading]) -> dict[str, int]:
    """Return the number of held messages by stage, in the slab and in spill files."""
    bases = rows[lay.ROW_SUPERVISOR].counters[lay.FLOW_BASE : lay.FLOW_BASE + len(STAGE_NAMES)]
    stages = [_signed(flow + base) for flow, base in zip(flows(rows), bases, strict=True)]
    spilled = sum(row.spilled for row in used_rows(rows))
    return {**dict(zip(STAGE_NAMES, _carry_deficits(stages), strict=True)), SPILLED: spilled}


def flows(rows: Sequence[RowReading]) -> list[int]:
    """Return the number of messages that came into each stage of STAGE_NAMES, less the number that went out of it."""
    router, dispatchers = rows[lay.ROW_ROUTER], used_rows(rows[lay.ROW_FIRST_DISPATCHER :])
    # All rows except those of the router and the dispatchers; usually only the rows of inputs have messages.
    inputs = used_rows(rows[row] for row in (lay.ROW_SUPERVISOR, lay.ROW_STATUS, *lay.INPUT_ROWS))
    not_settled_or_spilled = sum(row.counters[Counter.MsgReceived] - row.settled - row.spilled for row in inputs)
    handed_over = sum(row.ticket for row in inputs)
    assigned = router.counters[lay.FLOW_ASSIGNED]
    sent, returned, returned_sent = (
        sum(row.counters[counter] for row in dispatchers)
        for counter in (lay.FLOW_SENT, lay.FLOW_RETURNED, lay.FLOW_RETURNED_SENT)
    )
    return [
        not_settled_or_spilled - handed_over,
        handed_over + returned + returned_sent - assigned - router.settled,
        assigned - sent - returned,
        sent - returned_sent - sum(row.settled for row in dispatchers),
    ]


def _signed(number: int) -> int:
    """Return the signed 64-bit integer that equals `number` modulo 2^64: the slab stores a negative base unsigned."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _carry_deficits(stages: list[int]) -> list[int]:
    """Raise negative counts to 0, and subtract the difference from the next stage.

    A count is negative because the next stage already counts messages that this one does not count yet: messages that
    moved on between the readings of two rows, or that an input handed over from a batch it has not counted yet.
    """
    counts, deficit = [], 0
    for stage in stages[:-1]:
        counts.append(max(0, stage + deficit))
        deficit = min(0, stage + deficit)
    return [*counts, stages[-1] + deficit]
