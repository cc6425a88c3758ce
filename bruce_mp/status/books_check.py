"""The check of the process rows' counts against the state words of all records, a few chunks at a time.

A pass takes seconds in a large slab, and the processes change the slab during it. So the counted records must be at
least the messages held throughout the pass, and at most those held at its start plus those that entered the slab later.
If no row changed, the stages must agree exactly. The check reports a difference that two passes in a row find.
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp import kernels
from bruce_mp.pipeline.stage_counts import count_by_stage, invalidate_counts
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.layout import RunState
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.stages import SPILLED, held_by_stage, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.stages import RowReading

__all__ = ["BooksCheck", "Verdict"]

log = logging.getLogger(__name__)
INTERVAL_MS: Final = 60_000
"""A minute, because a pass walks all chunks in use, which costs CPU time."""
_STEP_S: Final = 0.02
"""Time that a step may take once a second."""
_CHUNKS_AT_ONCE: Final = 256
"""Chunks that are counted before the step looks at the clock."""


class Verdict(NamedTuple):
    """Wall-clock time of the last pass, 0 before the first, and the messages by which records and rows differ."""

    checked_ms: int = 0
    unaccounted: int = 0


class BooksCheck:
    """Passes over the slab, one each minute; call `step` once a second."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.verdict = Verdict()
        self._due_ms = 0
        self._is_repeated = False
        """True after a pass that found a difference, so that the next pass decides."""
        self._state_counts = [0] * len(RunState)
        self._rows_before: list[RowReading] = []
        self._chunks: Iterator[tuple[int, int]] | None = None
        """The chunks that the pass has yet to read, with their generations; None between passes."""
        self._is_complete = False
        """True after the last chunk of a pass, until the next step judges the pass."""

    def step(self, steady_ms: int, now_ms: int) -> None:
        """Begin a pass if one is due, continue it for a moment, or judge it once it is complete."""
        # A step after the last chunks, because an input counts a batch as received only after appending its records.
        if self._is_complete:
            self._evaluate(steady_ms, now_ms)
        elif self._chunks is None and steady_ms >= self._due_ms:
            self._begin()
        if self._chunks is not None:
            self._continue(self._chunks)

    def _begin(self) -> None:
        self._rows_before = read_rows(self._slab)
        self._state_counts = [0] * len(RunState)
        self._chunks = ((chunk, generation) for chunk, _, _, generation in used_chunk_headers(self._slab))

    def _continue(self, chunks: Iterator[tuple[int, int]]) -> None:
        deadline = time.monotonic() + _STEP_S
        while time.monotonic() < deadline:
            next_chunks = list(islice(chunks, _CHUNKS_AT_ONCE))
            if not next_chunks:
                self._chunks, self._is_complete = None, True
                return
            counts = kernels.count_states(self._slab, next_chunks)
            self._state_counts = [total + count for total, count in zip(self._state_counts, counts, strict=True)]

    def _evaluate(self, steady_ms: int, now_ms: int) -> None:
        after, counted = read_rows(self._slab), count_by_stage(self._state_counts)
        unaccounted = count_unaccounted(self._rows_before, after, counted)
        self._is_complete = False
        if unaccounted and not self._is_repeated:
            self._is_repeated, self._due_ms = True, steady_ms
            return
        if unaccounted and not self.verdict.unaccounted:  # once, until a pass finds no difference
            self._report(unaccounted)
        self.verdict = Verdict(now_ms, unaccounted)
        self._is_repeated, self._due_ms = unaccounted > 0, steady_ms + INTERVAL_MS

    def _report(self, unaccounted: int) -> None:
        invalidate_counts(self._slab, lay.ROW_STATUS)  # a mark in one row invalidates the counts of all rows
        log.error(
            "The records in the slab differ by %d messages from the counts of the processes. `bruce slab inspect` "
            "shows damage; the next start of the daemon counts the records again.",
            unaccounted,
        )


def count_unaccounted(before: Sequence[RowReading], after: Sequence[RowReading], counted: Mapping[str, int]) -> int:
    """Return the number of messages by which the counted records exceed or miss what the rows allow."""
    held = held_by_stage(before)
    if list(before) == list(after):
        return sum(abs(counted[stage] - held[stage]) for stage in counted)
    entered, left = _entered(after) - _entered(before), _left(after) - _left(before)
    held_before, records = sum(held.values()) - held[SPILLED], sum(counted.values())  # spilled ones have no record
    return max(0, (held_before - left) - records, records - (held_before + entered))


def _entered(rows: Sequence[RowReading]) -> int:
    """Return the number of messages that ever entered the slab: received, or fed from a spill file."""
    return sum(row.counters[Counter.MsgReceived] + row.spill_out for row in rows)


def _left(rows: Sequence[RowReading]) -> int:
    """Return the number of messages that ever left the slab: settled, or moved to a spill file."""
    return sum(row.settled + row.spill_in for row in rows)
