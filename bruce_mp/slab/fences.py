"""The runs of fenced attempts in the slab.

A *fenced attempt* is a group of messages of a stream client that are delivered together or not at all.  They stay with
the input until the client declares the attempt complete.  The chunks of an attempt contain no other messages, and their
headers contain the number of the attempt.  The runs of an incomplete attempt stay OPEN, so only the input may change
them.  Messages that exceed the room for attempts go to a *spill file*.

The completion of an attempt begins with one store to the input's process row, ROW_COMPLETING.  If the input dies before
this store, its successor discards the attempt, with its spill file.  If the input dies later, its successor finishes
the completion.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs
from bruce_mp.slab.handover_tickets import HandoverTickets, completing_attempt
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import records_of, segment_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.spill import SpillFile

__all__ = [
    "assign_chunk",
    "attempt_of",
    "complete_attempt",
    "finish_completion",
    "incomplete_segments",
]


def attempt_of(slab: Slab, chunk: int) -> int:
    """Return the number of the fenced attempt in a chunk, 0 for none."""
    return slab.words[(slab.chunk_at(chunk) + lay.CHUNK_ATTEMPT) >> 2]


def assign_chunk(slab: Slab, chunk: int, attempt: int) -> None:
    """Assign a chunk to an attempt, before its first run."""
    slab.words[(slab.chunk_at(chunk) + lay.CHUNK_ATTEMPT) >> 2] = attempt


def complete_attempt(
    slab: Slab, row: int, attempt: int, segments: Iterable[Segment], spill: SpillFile | None = None
) -> None:
    """Complete an attempt: mark its spill file complete, and hand its runs over to the router in the order given."""
    slab.words[_word_index(slab, row, lay.ROW_COMPLETING)] = attempt
    if spill is not None:
        spill.complete()
        slab.longs[(slab.row_at(row) + lay.ROW_COUNTERS + 8 * lay.SPILL_COMPLETED) >> 3] += spill.message_count
    _hand_over_completed(slab, row, attempt, segments)


def finish_completion(slab: Slab, row: int) -> None:
    """Finish a completion that the dead input of a row began.

    Call it after `HandoverTickets.catch_up`, because the runs must get larger tickets than all earlier runs of the row.
    """
    attempt = completing_attempt(slab, row)
    if attempt:
        remaining = [each for each in incomplete_segments(slab, row) if attempt_of(slab, each.chunk) == attempt]
        _hand_over_completed(slab, row, attempt, remaining)


def incomplete_segments(slab: Slab, row: int) -> list[Segment]:
    """Return the OPEN runs of the attempts of a row's input, in order of arrival; mark empty runs DELIVERED."""
    found: list[tuple[int, Segment]] = []
    for chunk, offset, run in all_runs(slab):
        is_own = slab.owner_of(chunk) == row
        if not is_own or run.state is not RunState.OPEN or not attempt_of(slab, chunk):
            continue
        if not run.records:
            # An empty run has nothing to deliver, and its chunk can be reclaimed.
            slab.words[(slab.chunk_at(chunk) + offset) >> 2] = RunState.DELIVERED
            continue
        with suppress(SlabError):  # a damaged run stays in place
            # A dead input may have updated the total in the run's header for a record that it did not append.
            payload = sum(record.payload for _, record in records_of(slab, chunk, offset, run))
            found.append((run.first_arrival, segment_of(chunk, offset, run)._replace(payload=payload)))
    return [segment for _, segment in sorted(found)]


def _hand_over_completed(slab: Slab, row: int, attempt: int, segments: Iterable[Segment]) -> None:
    """Hand the runs of an attempt over to the router, and end the attempt's completion."""
    tickets = HandoverTickets(slab, row)
    for segment in segments:
        tickets.hand_over(slab.chunk_at(segment.chunk) + segment.run)  # the offset of the run's header
    slab.words[_word_index(slab, row, lay.ROW_LAST_COMPLETED)] = attempt
    slab.words[_word_index(slab, row, lay.ROW_COMPLETING)] = 0


def _word_index(slab: Slab, row: int, field: int) -> int:
    """Return the index in `slab.words` of a field of a process row."""
    return (slab.row_at(row) + field) >> 2
