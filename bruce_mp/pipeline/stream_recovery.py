"""Recovery after the death of a stream worker, by the next worker of its process row or by the supervisor.

The recovery counts the messages that the worker appended to the slab but did not count.  It discards the messages of
incomplete fenced attempts, in the slab and in spill files, which hold the rest of large attempts.  Spilled messages of
complete attempts stay in their files for the next worker of the row.

A worker *feeds* a spill file when it appends the file's messages to the slab.  The worker's row and the header of the
file store the progress.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.fences import finish_completion, incomplete_segments
from bruce_mp.slab.handover_tickets import completing_attempt, last_completed_attempt
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import close_open_runs, uncounted_records
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.slab.spill import (
    completed_message_count,
    needs_spill_files,
    spilled_message_count,
    try_to_remove,
    wrapping_delta,
)
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Record
    from bruce_mp.slab.spill import SpillDirectory, SpillFile

__all__ = ["open_spill_files", "recover_stream_input", "resolve_unique_attempts"]

log = logging.getLogger(__name__)
_PROGRESS_COUNTERS: Final = (lay.SPILL_FED_ATTEMPT, lay.SPILL_FED_OFFSET, lay.SPILL_FED_COUNT)
"""The row's counters about the spill file that its worker fed last: the attempt's number, the offset and the count."""


def recover_stream_input(slab: Slab, row: ProcessRow, row_number: int, directory: SpillDirectory) -> bool:
    """Close the open runs of a dead worker, count its uncounted messages, and end its fenced attempts.

    An attempt is completed if its completion has begun, else discarded.  `row_number` is the number of `row`.  The
    caller may call the function again if a crash interrupts it.  Return False if `resolve_unique_attempts` must
    be called again because it has failed.  Raise SlabError if the spill files cannot be read.
    """
    close_open_runs(slab, row_number)
    spill_files = open_spill_files(slab, row, row_number, directory)
    finish_completion(slab, row_number)
    has_resolved = _try_to_resolve(slab, row_number, directory)
    uncounted = uncounted_records(slab, row_number, row.counted)
    # While a worker feeds a file, it appends nothing else, so all uncounted records come from that file. They are not
    # counted as received again: the worker counted them when it spilled them.
    is_feeding = row.counters[lay.SPILL_FEEDING] > 0
    increments = _mark_fed(row, spill_files, uncounted) if is_feeding else {int(Counter.MsgReceived): len(uncounted)}
    keyed_count = sum(1 for record in uncounted if record.is_partition_key)
    increments[Counter.InputAgentProcessPartitionKeyMsg] = keyed_count
    increments[Counter.InputAgentProcessAnyPartitionMsg] = len(uncounted) - keyed_count
    fed_last = spill_files.get(row.counters[lay.SPILL_FED_ATTEMPT])
    if fed_last is None or fed_last.is_stored:
        # The counters of the row are set to 0: a later attempt may get the same number, and must not inherit the
        # progress.
        increments |= {counter: wrapping_delta(-row.counters[counter]) for counter in _PROGRESS_COUNTERS}
    new_counted = max((lay.stream_number(record.arrival) + 1 for record in uncounted), default=row.counted)
    # At least 1, because in a redo record 0 stands for an unchanged number.
    row.commit_counted(max(1, new_counted), {counter: number for counter, number in increments.items() if number})
    _discard_incomplete(slab, row, row_number)
    _settle_spills(slab, row, row_number, directory, spill_files)
    return has_resolved


def _try_to_resolve(slab: Slab, row_number: int, directory: SpillDirectory) -> bool:
    """Call `resolve_unique_attempts`; if it fails, log the error and return False."""
    try:
        resolve_unique_attempts(slab, row_number, directory)
    except (OSError, SlabError) as error:
        log.error("The registry of attempts in %s cannot be written: %s.", directory.path, str(error).rstrip("."))
        return False
    return True


def resolve_unique_attempts(slab: Slab, row_number: int, directory: SpillDirectory) -> None:
    """Store the outcomes of the dead worker's unique (named) attempts; the slab names the last completed one.

    Raise OSError or SlabError if the registry cannot be read, or lacks such an outcome and cannot be written.  The next
    worker of the row must not complete an attempt before a call has succeeded: it would replace that name.
    """
    if directory.registry.exists:
        directory.registry.resolve(row_number, last_completed_attempt(slab, row_number))


def open_spill_files(slab: Slab, row: ProcessRow, row_number: int, directory: SpillDirectory) -> dict[int, SpillFile]:
    """Return the files of a row by attempt number, after a copy of what their headers lack from the row.

    These are the completion of the last attempt, and the progress of the file that was fed last.
    """
    files = directory.files(row_number, are_needed=needs_spill_files(slab, row_number))
    for number in {completing_attempt(slab, row_number), last_completed_attempt(slab, row_number)} & files.keys():
        if not files[number].is_complete:
            files[number].complete()  # `_settle_spills` corrects the counter SPILL_COMPLETED
    file, offset = files.get(row.counters[lay.SPILL_FED_ATTEMPT]), row.counters[lay.SPILL_FED_OFFSET]
    if file is not None and file.is_complete and file.offset < offset <= file.end:
        file.advance_to(offset, row.counters[lay.SPILL_FED_COUNT])
    return files


def _mark_fed(row: ProcessRow, spill_files: Mapping[int, SpillFile], uncounted: list[Record]) -> dict[int, int]:
    """Mark the uncounted messages as fed in the header of their spill file. Return the spill counters' increments."""
    attempt = row.counters[lay.SPILL_FEEDING]
    if attempt in spill_files and uncounted:
        spill_files[attempt].store_fed_ahead({lay.stream_number(record.arrival) - row.counted for record in uncounted})
        spill_files[attempt].store_overdue()  # or fail: without the indexes, the messages would be fed again
    fed_count = min(len(uncounted), row.counters[lay.SPILL_COMPLETED])  # the counter must not fall below 0
    return {
        lay.SPILL_OUT: len(uncounted),
        lay.SPILL_COMPLETED: wrapping_delta(-fed_count),
        lay.SPILL_FEEDING: wrapping_delta(-attempt),
    }


def _discard_incomplete(slab: Slab, row: ProcessRow, row_number: int) -> None:
    abandoned, reason = incomplete_segments(slab, row_number), DiscardReason.ABANDONED_ATTEMPT
    for start in range(0, len(abandoned), MAX_SETTLED_SEGMENTS):
        group = abandoned[start : start + MAX_SETTLED_SEGMENTS]
        row.settle(group, RunState.DISCARDED, reason, {discarded(reason): sum(segment.records for segment in group)})


def _settle_spills(
    slab: Slab, row: ProcessRow, row_number: int, directory: SpillDirectory, spill_files: Mapping[int, SpillFile]
) -> None:
    """Discard spilled messages: those of incomplete attempts, and those of complete attempts without a file.

    Close the files that still have messages to feed, and remove the other files.
    """
    kept_files = [file for file in spill_files.values() if file.is_complete and file.remaining_count]
    remaining_count = sum(file.remaining_count for file in kept_files)
    # These two counts come from the row's counters.
    spilled_count, completed_count = spilled_message_count(slab, row_number), completed_message_count(slab, row_number)
    # The files should have all messages of complete attempts. The other spilled ones are of incomplete attempts.
    lost_count = max(0, min(completed_count, spilled_count) - remaining_count)
    abandoned_count = max(0, spilled_count - remaining_count - lost_count)
    if lost_count:
        log.error(
            "Spill files in %s are missing: %d messages of complete fenced attempts are lost.",
            directory.path,
            lost_count,
        )
    increments = {
        lay.SPILL_OUT: lost_count + abandoned_count,
        lay.SPILL_COMPLETED: wrapping_delta(remaining_count - completed_count),
        discarded(DiscardReason.SPILL_LOST): lost_count,
        discarded(DiscardReason.ABANDONED_ATTEMPT): abandoned_count,
    }
    increments = {counter: number for counter, number in increments.items() if number}
    if increments:
        # Without segments, the transaction only raises all counters at once.
        row.settle((), RunState.DISCARDED, 0, increments)
    row.counters[lay.SPILL_OLDEST] = 0  # because no attempt is open now
    row.counters[lay.SPILL_BYTES] = sum(file.reserved_bytes for file in kept_files)
    for file in spill_files.values():
        if file in kept_files:
            file.close()
        else:
            try_to_remove(file)
