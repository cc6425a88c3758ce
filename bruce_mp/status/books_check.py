"""Checks that the counts of held messages in the process rows agree with the records in the slab.

A pass of the check counts all records by their state words, a few chunks at a time. In a large slab a pass takes
seconds, in which the processes change the slab. So the number of counted records must be at least the number of
messages that were held during the whole pass, and at most the number of messages that were held at its start or entered
the slab during the pass. If no row has changed, the numbers must be equal for each stage. The check reports a
difference only if two passes in a row find one.
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
"""Time between the end of a pass and the start of the next. A pass reads all chunks in use, which costs CPU time."""
_STEP_S: Final = 0.02
"""Longest duration of a step."""
_CHUNKS_AT_ONCE: Final = 256
"""Number of chunks that are counted before the step looks at the clock again."""


class Verdict(NamedTuple):
    """Result of the last pass.

    `checked_ms` is the wall-clock time of its end, 0 before the first pass. `unaccounted` is the number of messages by
    which the records differ from the range that the rows allow.
    """

    checked_ms: int = 0
    unaccounted: int = 0


class BooksCheck:
    """Check that makes a pass each minute; the caller calls `step` once a second."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.verdict = Verdict()
        self._due_ms = 0
        self._last_pass_differed = False
        """True if the last pass found a difference. Only if the next pass finds one as well, it is reported."""
        self._state_counts = [0] * len(RunState)
        self._rows_before: list[RowReading] = []
        self._chunks: Iterator[tuple[int, int]] | None = None
        """(chunk, generation) of each chunk that the pass has not read yet; None between passes."""
        self._is_complete = False
        """True after the last chunk of a pass, until the next step evaluates the pass."""

    def step(self, steady_ms: int, now_ms: int) -> None:
        """Begin a pass if one is due, and continue it for `_STEP_S`, or evaluate a pass that is complete."""
        # The evaluation comes a second after the last chunk was read: an input appends the records of a batch before it
        # counts them as received, so the rows must be read later than the records.
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
            if not next_chunks:  # all chunks are read
                self._chunks, self._is_complete = None, True
                return
            counts = kernels.count_states(self._slab, next_chunks)
            self._state_counts = [total + count for total, count in zip(self._state_counts, counts, strict=True)]

    def _evaluate(self, steady_ms: int, now_ms: int) -> None:
        rows_after, counted = read_rows(self._slab), count_by_stage(self._state_counts)
        unaccounted = count_unaccounted(self._rows_before, rows_after, counted)
        self._is_complete = False
        if unaccounted and not self._last_pass_differed:
            self._last_pass_differed, self._due_ms = True, steady_ms  # repeat the pass at once
            return
        if unaccounted and not self.verdict.unaccounted:  # do not report it again until a pass has found no difference
            self._report(unaccounted)
        self.verdict = Verdict(now_ms, unaccounted)
        self._last_pass_differed, self._due_ms = unaccounted > 0, steady_ms + INTERVAL_MS

    def _report(self, unaccounted: int) -> None:
        # The mark makes the next start of the daemon count the records again; in one row it is valid for all rows.
        invalidate_counts(self._slab, lay.ROW_STATUS)
        log.error(
            "The records in the slab differ by %d messages from the counts of the processes. `bruce slab inspect` "
            "shows damage; the next start of the daemon counts the records again.",
            unaccounted,
        )


def count_unaccounted(before: Sequence[RowReading], after: Sequence[RowReading], counted: Mapping[str, int]) -> int:
    """Return the number of messages by which the records differ from the range that the rows allow.

    `before` and `after` are the rows before and after the pass; `counted` is the number of records by stage.
    """
    held = held_by_stage(before)
    if list(before) == list(after):
        return sum(abs(counted[stage] - held[stage]) for stage in counted)
    entered, left = _entered(after) - _entered(before), _left(after) - _left(before)
    held_before = sum(held.values()) - held[SPILLED]  # messages in spill files have no record in the slab
    record_count = sum(counted.values())
    fewest, most = held_before - left, held_before + entered
    return max(0, fewest - record_count, record_count - most)


def _entered(rows: Sequence[RowReading]) -> int:
    """Return the number of messages that have ever entered the slab: received, or moved back from a spill file."""
    return sum(row.counters[Counter.MsgReceived] + row.spill_out for row in rows)


def _left(rows: Sequence[RowReading]) -> int:
    """Return the number of messages that have ever left the slab: delivered, discarded, or moved to a spill file."""
    return sum(row.settled + row.spill_in for row in rows)
