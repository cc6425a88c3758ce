"""Held messages by stage, counted from the state words of all records in the slab.

This count takes longer, the more messages are held.  `telemetry/stages.py` has a faster count, from the process rows:
each row stores how many messages its process has moved between the stages.  The daemon compares the two counts.  In a
slab of an older release, the rows lack these numbers; `recount` then gives the faster count its starting values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.landing_zone import base_at, landed_lengths
from bruce_mp.slab.recovery import arrivals_in_chunks
from bruce_mp.telemetry.books import books_of, row_integers, spilled_total
from bruce_mp.telemetry.counters import BOOK_COUNTER_COUNT
from bruce_mp.telemetry.stages import SPILLED, STAGE_NAMES, STAGE_OF_STATE, flows, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.books import Books

__all__ = ["count_books", "count_by_stage", "has_counts", "invalidate_counts", "recount"]

_MAX_READINGS: Final = 5
"""The most readings in search of a consistent one; in a slab in use, a reading may overlap a transaction."""
_NO_INCARNATION: Final = 0xFFFFFFFF
"""A number that differs from every incarnation, because an incarnation has 24 bits."""
_INPUT_STAGE: Final = 0
"""The index of the inputs' stage in `STAGE_NAMES`."""


def count_books(slab: Slab) -> Books:
    """Return the books with the held messages counted from the state words.

    Repeat an inconsistent reading. If none of `_MAX_READINGS` readings is consistent, return the last one.
    """
    books = _count_once(slab)
    for _ in range(_MAX_READINGS - 1):
        if books.consistent:
            break
        books = _count_once(slab)
    return books


def _count_once(slab: Slab) -> Books:
    versions = row_integers(slab, lay.ROW_VERSION)
    # The counters of row n begin at index `first` + n * `step` in `slab.longs`.
    first, step = (slab.geometry.rows_at + lay.ROW_COUNTERS) >> 3, lay.ROW_BYTES >> 3
    starts = range(first, first + slab.geometry.rows * step, step)
    rows = [slab.longs[start : start + BOOK_COUNTER_COUNT].tolist() for start in starts]
    used_rows = filter(any, rows)
    counters = [sum(counts) for counts in zip(*used_rows, strict=True)] or rows[0]  # if no row is used, all are 0
    held = {**_held_by_stage(slab), SPILLED: spilled_total(slab)}
    is_unchanged = versions == row_integers(slab, lay.ROW_VERSION)
    has_transaction = any(version & 1 for version in versions)  # a version is odd during a transaction
    return books_of(counters, held, is_consistent=is_unchanged and not has_transaction)


def _held_by_stage(slab: Slab) -> dict[str, int]:
    chunks = [(chunk, generation) for chunk, _, _, generation in used_chunk_headers(slab)]
    return count_by_stage(kernels.count_states(slab, chunks))


def count_by_stage(record_counts: Sequence[int]) -> dict[str, int]:
    """Return the number of held records by stage; `record_counts[state]` is the number of records in a state."""
    held = dict.fromkeys(STAGE_NAMES, 0)
    for state, stage in STAGE_OF_STATE.items():
        held[stage] += record_counts[state]
    return held


def has_counts(slab: Slab) -> bool:
    """Return True if the faster count is valid: in each row, the last process counted the messages that it moved."""
    return all(_incarnation(slab, row) == slab.words[_counted_index(slab, row)] for row in range(slab.geometry.rows))


def invalidate_counts(slab: Slab, row: int) -> None:
    """Make `has_counts` return False until the next `recount`; `row` is the row of the calling process."""
    slab.words[_counted_index(slab, row)] = _NO_INCARNATION


def recount(slab: Slab) -> None:
    """Set each stage's correction (FLOW_BASE), so that the faster count agrees with the state words.

    No other process may change the slab during the call.
    """
    held = _held_by_stage(slab).values()
    bases = [held_count - flow for held_count, flow in zip(held, flows(read_rows(slab)), strict=True)]
    if landed_lengths(slab):
        # When the input starts, it counts all datagrams in the landing zone as received. Some of them have a record
        # already; without this subtraction, they would count twice.
        bases[_INPUT_STAGE] -= len(arrivals_in_chunks(slab, slab.longs[base_at(slab) >> 3]))
    first = (slab.row_at(lay.ROW_SUPERVISOR) + lay.ROW_COUNTERS) >> 3
    for stage, base in enumerate(bases):
        slab.longs[first + lay.FLOW_BASE + stage] = base % (1 << 64)  # as an unsigned number, even if it is negative
    for row in range(slab.geometry.rows):
        slab.words[_counted_index(slab, row)] = _incarnation(slab, row)


def _incarnation(slab: Slab, row: int) -> int:
    return slab.words[(slab.row_at(row) + lay.ROW_INCARNATION) >> 2]


def _counted_index(slab: Slab, row: int) -> int:
    """Return the index in `slab.words` of ROW_COUNTING, the last incarnation that counted the messages it moved."""
    return (slab.row_at(row) + lay.ROW_COUNTING) >> 2
