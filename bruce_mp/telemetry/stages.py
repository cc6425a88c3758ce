"""Held messages by stage, computed from the process rows alone, so that the cost does not grow with their number.

A message is *held* from its receipt until it is *settled*: delivered or discarded.  Each process has a row in the slab
with counters.  In the transaction that stores the state words of messages, the process also counts the messages that it
moves to another stage.  The number of messages in a stage is the number that came in less the number that went out:

    input      received - discarded - spilled - handed over (the ticket of an input's row)
    router     handed over + returned - assigned - discarded
    queued     assigned - sent - returned without being sent
    in_flight  sent - returned after being sent - delivered - discarded

Each row is read between two transactions of its process.  A transaction changes both sides of *received = delivered +
discarded + held* by the same number, so the equation holds even if rows are read at different times.  If an older
release without these counts has written a slab, its state words give a *base* for each stage, a number to add
(`pipeline/stage_counts.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import redo_counters
from bruce_mp.telemetry.counters import BOOK_COUNTERS, FIRST_DISCARD, Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["SPILLED", "STAGES", "STAGE_NAMES", "RowReading", "flows", "held_by_stage", "read_rows", "used_rows"]

STAGES: Final[dict[RunState, str]] = {
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
"""The stage of a record in each state; *queued* and *in_flight* are the two stages of a dispatcher."""
SPILLED: Final = "spill"
"""The stage of messages in spill files, which are not in the slab."""

STAGE_NAMES: Final = tuple(dict.fromkeys(STAGES.values()))
"""The stages in the slab, in order."""
_READ_ORDER: Final = (*lay.DISPATCHER_ROWS, lay.ROW_ROUTER, *lay.INPUT_ROWS, lay.ROW_STATUS, lay.ROW_SUPERVISOR)
"""Rows of later stages come first: then a count seldom becomes negative if a message moves on between two readings."""
_MAX_READINGS: Final = 1000
"""The maximum number of readings of a row that its process keeps changing; each takes microseconds."""


class RowReading(NamedTuple):
    """A reading of a row: the counters of the books, and the numbers of messages that went into and out of spill files.

    `ticket` is the number of messages that an input has handed over.  `has_open_batch` is True while an input appends a
    batch that it has not counted yet.  `is_consistent` is False if the process changed the row during each reading.
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


_UNUSED: Final = RowReading([0] * BOOK_COUNTERS, 0, 0, 0, has_open_batch=False, is_consistent=True)
"""The reading of all rows that never had a process.  Most rows of a slab are such rows; `used_rows` omits them."""
_UNUSED_BYTES: Final = bytes(lay.ROW_COUNTERS + 8 * BOOK_COUNTERS)
"""The beginning of a row that never had a process, to the end of the counters of the books."""


def used_rows(rows: Iterable[RowReading]) -> list[RowReading]:
    """Return the readings of rows that had a process."""
    return [row for row in rows if row is not _UNUSED]


def read_rows(slab: Slab) -> list[RowReading]:
    """Read each row between two of its transactions."""
    readings = {row: _read_row(slab, row) for row in _READ_ORDER}
    return [readings[row] for row in range(lay.ROW_COUNT)]


def _read_row(slab: Slab, row: int) -> RowReading:
    for _ in range(_MAX_READINGS):
        before = version, redo_word = _version_and_redo_word(slab, row)
        if version == redo_word == 0 and _is_unused(slab, row):
            return _UNUSED
        reading = _read_once(slab, row, is_redo_valid=redo_word != 0)
        if _version_and_redo_word(slab, row) == before:
            return reading
    return reading._replace(is_consistent=False)


def _is_unused(slab: Slab, row: int) -> bool:
    at = slab.row_at(row)
    counter_0 = (at + lay.ROW_COUNTERS) >> 3
    has_spilled = slab.longs[counter_0 + lay.SPILL_IN] or slab.longs[counter_0 + lay.SPILL_OUT]
    return not has_spilled and bytes(slab.view[at : at + len(_UNUSED_BYTES)]) == _UNUSED_BYTES


def _version_and_redo_word(slab: Slab, row: int) -> tuple[int, int]:
    """Return the row's version, and the word that is not 0 while the row's redo record is valid.

    A process writes a transaction into the redo record of its row before it carries the transaction out.
    """
    at = slab.row_at(row)
    return slab.longs[(at + lay.ROW_VERSION) >> 3], slab.words[(at + lay.ROW_REDO) >> 2]


def _read_once(slab: Slab, row: int, *, is_redo_valid: bool) -> RowReading:
    """Read a row; if its redo record is valid, use its new values, as if the transaction were complete."""
    at = slab.row_at(row)
    counter_0 = (at + lay.ROW_COUNTERS) >> 3
    new_values = redo_counters(slab, row) if is_redo_valid else {}
    counters = slab.longs[counter_0 : counter_0 + BOOK_COUNTERS].tolist()
    for counter, value in new_values.items():
        if counter < BOOK_COUNTERS:
            counters[counter] = value
    spill_in, spill_out = (
        new_values.get(counter, slab.longs[counter_0 + counter]) for counter in (lay.SPILL_IN, lay.SPILL_OUT)
    )
    # Outside a transaction, an odd version means that an input appends a batch that it has not counted yet.
    has_open_batch = not is_redo_valid and slab.longs[(at + lay.ROW_VERSION) >> 3] & 1 != 0
    ticket = slab.longs[(at + lay.ROW_TICKET) >> 3]
    return RowReading(counters, ticket, spill_in, spill_out, has_open_batch, is_consistent=True)


def held_by_stage(rows: Sequence[RowReading]) -> dict[str, int]:
    """Return the number of held messages by stage, in the slab and in spill files."""
    # The supervisor writes the bases into its row when it takes over the slab of an older release without these counts.
    bases = rows[lay.ROW_SUPERVISOR].counters[lay.FLOW_BASE : lay.FLOW_BASE + len(STAGE_NAMES)]
    stages = [_signed(flow + base) for flow, base in zip(flows(rows), bases, strict=True)]
    spilled = sum(row.spilled for row in used_rows(rows))
    return {**dict(zip(STAGE_NAMES, _carry_deficits(stages), strict=True)), SPILLED: spilled}


def flows(rows: Sequence[RowReading]) -> list[int]:
    """Return for each stage of STAGE_NAMES the number of messages that came in less the number that went out.

    The bases are not included.
    """
    router, dispatchers = rows[lay.ROW_ROUTER], used_rows(rows[row] for row in lay.DISPATCHER_ROWS)
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
    """Return the signed 64-bit integer that equals `number` modulo 2^64, because the slab stores bases unsigned."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _carry_deficits(stages: list[int]) -> list[int]:
    """Raise negative counts to 0, and subtract the difference from the next stage, because its count is too large.

    The next stage already counts a message that moved on between the readings of two rows.  It also counts the messages
    that an input has handed over from a batch that the input has not counted yet.
    """
    counts, deficit = [], 0
    for stage in stages[:-1]:
        counts.append(max(0, stage + deficit))
        deficit = min(0, stage + deficit)
    return [*counts, stages[-1] + deficit]
