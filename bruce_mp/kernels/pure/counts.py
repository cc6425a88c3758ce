"""Count the records of chunks: the outcomes of stream clients' messages, and all records by state.

The outcome of a message is the final state of its record, with the reason if the message was discarded.  Outcomes are
counted for each flush group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import read_stable
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import records_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["CountedPosition", "OutcomeCounts", "count_outcomes", "count_states"]

_SOURCE_MASK: Final = lay.ARRIVAL_SOURCES - 1
"""Mask for the number of a message's flush group, in the lowest bits of the record's arrival number."""


class CountedPosition(NamedTuple):
    """The next run to count in a chunk: its number (0 = the chunk's first run), and its offset in the chunk."""

    run: int = 0
    offset: int = lay.CHUNK_HEADER


class OutcomeCounts(NamedTuple):
    """The position behind the counted runs, and the number of messages by (flush group, settled state, reason)."""

    position: CountedPosition
    counts: dict[tuple[int, int, int], int]


def count_outcomes(slab: Slab, chunk: int, position: CountedPosition) -> OutcomeCounts:
    """Count the outcomes in the runs of a chunk from `position` to the first run that is unsettled or damaged.

    A chunk with a damaged span is not counted. Only the stream worker that owns the chunk may call this.
    """
    counts: dict[tuple[int, int, int], int] = {}
    words, start = slab.words, slab.chunk_at(chunk)
    run_count, end = words[(start + lay.CHUNK_RUNS) >> 2], words[(start + lay.CHUNK_SPAN) >> 2] * lay.CHUNK_BYTES
    run_number, offset = position
    if end > (slab.geometry.chunks - chunk) * lay.CHUNK_BYTES:  # the span's length is damaged
        return OutcomeCounts(CountedPosition(run_number, offset), counts)
    while run_number < run_count:
        size = _run_size(slab, start + offset, end - offset)
        outcomes = list(_outcomes(slab, start + offset, start + offset + size)) if size else [_UNSETTLED]
        if not all(state in lay.SETTLED for _, state, _ in outcomes):
            break
        for outcome in outcomes:
            counts[outcome] = counts.get(outcome, 0) + 1
        offset += size
        run_number += 1
    return OutcomeCounts(CountedPosition(run_number, offset), counts)


def _run_size(slab: Slab, run_at: int, max_size: int) -> int:
    """Return the size of a run; 0 for a damaged run."""
    if max_size < lay.RUN_HEADER or slab.words[(run_at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
        return 0
    size = slab.words[(run_at + lay.RUN_SIZE) >> 2]
    return size if lay.RUN_HEADER <= size <= max_size and not size & 7 else 0


def _outcomes(slab: Slab, run_at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (flush group, state, reason) of each record of a run, in order.

    Yield _UNSETTLED as the only or the last item if the run is unsettled or damaged.
    """
    words, longs, view = slab.words, slab.longs, slab.view
    state, reason = words[run_at >> 2] & 0xFF, view[run_at + lay.RUN_REASON]
    is_split = state == RunState.SPLIT
    if not is_split and state not in lay.SETTLED:
        yield _UNSETTLED
        return
    at = run_at + lay.RUN_HEADER + lay.align(words[(run_at + lay.RUN_NAME_LENGTH) >> 2] & 0xFFFF)
    for _ in range(words[(run_at + lay.RUN_COUNT) >> 2]):
        if at + lay.RECORD_HEADER > end or words[at >> 2] & 0xFF >= RunState.SPLIT:  # only a run can be SPLIT
            yield _UNSETTLED
            return
        if is_split:
            state, reason = words[at >> 2] & 0xFF, view[at + lay.RECORD_REASON]
        yield longs[(at + lay.RECORD_ARRIVAL) >> 3] & _SOURCE_MASK, state, reason
        headers_length = words[(at + lay.RECORD_EPOCH) >> 2] >> 16  # the 2 bytes behind the epoch
        payload = words[(at + lay.RECORD_KEY_LENGTH) >> 2] + words[(at + lay.RECORD_VALUE_LENGTH) >> 2] + headers_length
        at += lay.align(lay.RECORD_HEADER + payload)
    if at > end:
        yield _UNSETTLED


_UNSETTLED: Final = (0, int(RunState.OPEN), 0)
"""An item of `_outcomes` at which `count_outcomes` stops; only the state in it has a meaning."""


def count_states(slab: Slab, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the number of records in each RunState, in the order of the states.

    No record is SPLIT, so the number at SPLIT is that of damaged runs, records or chunks.  `spans` are pairs of the
    first chunk of a span and its generation.  If the owner reopens a chunk during the call, the call reads it again.
    """
    counts = [0] * len(RunState)
    for chunk, generation in spans:
        for state, record_count in read_stable(slab, chunk, generation, lambda chunk: _counts_in(slab, chunk)):
            counts[state] += record_count
    return counts


def _counts_in(slab: Slab, chunk: int) -> Iterator[tuple[RunState, int]]:
    """Yield pairs of a state and a number of records in a chunk; (SPLIT, 1) for a damaged run or record."""
    try:
        for offset, run in runs_of(slab, chunk):
            yield from _counts_of(slab, chunk, offset, run)
    except SlabError:
        yield RunState.SPLIT, 1


def _counts_of(slab: Slab, chunk: int, offset: int, run: Run) -> Iterator[tuple[RunState, int]]:
    if run.state not in _STATES_READ_BY_RECORD:
        yield run.state, run.records
        return
    try:
        for _, record in records_of(slab, chunk, offset, run):
            yield RunState(record.word & 0xFF) if run.state is RunState.SPLIT else run.state, 1
    except SlabError:
        yield RunState.SPLIT, 1


_STATES_READ_BY_RECORD: Final = frozenset({RunState.OPEN, RunState.SPLIT})
"""The records of runs in these states are read one by one.  Recovery reads them too, and must find the same damage."""
