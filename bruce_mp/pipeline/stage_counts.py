"""Held messages by stage, counted from the state words of all records in the slab.

The time for a count grows with the number of held messages.  The faster counts of the process rows
(`telemetry/stages.py`) are checked against this one.  In a slab of an older release, which lacks the faster counts,
they start from this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.landing_zone import base_at, landed_lengths
from bruce_mp.slab.recovery import copied_arrivals
from bruce_mp.telemetry.books import books_of, row_integers, spilled_total
from bruce_mp.telemetry.counters import BOOK_COUNTERS
from bruce_mp.telemetry.stages import SPILLED, STAGE_NAMES, STAGES, flows, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.books import Books

__all__ = ["count_books", "count_by_stage", "has_counts", "invalidate_counts", "recount"]

_MAX_READINGS: Final = 5
"""The most readings of a slab in use.  Each may overlap a transaction; the last one is returned even then."""
_INVALID_COUNTS: Final = 0xFFFFFFFF
"""Stands in place of an incarnation, which has only 24 bits."""
_INPUT_STAGE: Final = 0
"""The index of the inputs' stage in `STAGE_NAMES`."""


def count_books(slab: Slab) -> Books:
    """Count the held messages from the state words, up to `_MAX_READINGS` times until a reading is consistent."""
    books = _count_once(slab)
    for _ in range(_MAX_READINGS - 1):
        if books.consistent:
            break
        books = _count_once(slab)
    return books


def _count_once(slab: Slab) -> Books:
    before = row_integers(slab, lay.ROW_VERSION)
    first, step = (slab.geometry.rows_at + lay.ROW_COUNTERS) >> 3, lay.ROW_BYTES >> 3  # as indexes in `slab.longs`
    rows = [slab.longs[at : at + BOOK_COUNTERS].tolist() for at in range(first, first + lay.ROW_COUNT * step, step)]
    used_rows = filter(any, rows)
    counters = [sum(counts) for counts in zip(*used_rows, strict=True)] or rows[0]  # without a used row, all are 0
    held = {**_held_by_stage(slab), SPILLED: spilled_total(slab)}
    has_transaction = any(version & 1 for version in before)  # a version is odd during a transaction
    return books_of(counters, held, is_consistent=before == row_integers(slab, lay.ROW_VERSION) and not has_transaction)


def _held_by_stage(slab: Slab) -> dict[str, int]:
    chunks = [(chunk, generation) for chunk, _, _, generation in used_chunk_headers(slab)]
    return count_by_stage(kernels.count_states(slab, chunks))


def count_by_stage(states: Sequence[int]) -> dict[str, int]:
    """Return the number of held records by stage; `states[state]` is the number of records in this state."""
    held = dict.fromkeys(STAGE_NAMES, 0)
    for state, stage in STAGES.items():
        held[stage] += states[state]
    return held


def has_counts(slab: Slab) -> bool:
    """Return True if the last process of each row counted the messages that it moved between stages."""
    return all(_incarnation(slab, row) == slab.words[_counting_index(slab, row)] for row in range(lay.ROW_COUNT))


def invalidate_counts(slab: Slab, row: int) -> None:
    """Make `has_counts` return False until the next `recount`; `row` is the row of this process."""
    slab.words[_counting_index(slab, row)] = _INVALID_COUNTS


def recount(slab: Slab) -> None:
    """Set FLOW_BASE, a correction for each stage, so that the rows' counts agree with the state words.

    No other process may change the slab during the call.
    """
    held = _held_by_stage(slab).values()
    bases = [messages - flow for messages, flow in zip(held, flows(read_rows(slab)), strict=True)]
    if landed_lengths(slab):
        # The input counts the landed datagrams as received when it starts, so those with a record must not count twice.
        bases[_INPUT_STAGE] -= len(copied_arrivals(slab, slab.longs[base_at(slab) >> 3]))
    first = (slab.row_at(lay.ROW_SUPERVISOR) + lay.ROW_COUNTERS) >> 3
    for stage, base in enumerate(bases):
        slab.longs[first + lay.FLOW_BASE + stage] = base % (1 << 64)  # a negative base, as an unsigned addend
    for row in range(lay.ROW_COUNT):
        slab.words[_counting_index(slab, row)] = _incarnation(slab, row)


def _incarnation(slab: Slab, row: int) -> int:
    return slab.words[(slab.row_at(row) + lay.ROW_INCARNATION) >> 2]


def _counting_index(slab: Slab, row: int) -> int:
    """Return the index in `slab.words` of the last incarnation that counted its moves."""
    return (slab.row_at(row) + lay.ROW_COUNTING) >> 2
