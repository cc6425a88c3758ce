"""Count the records of chunks by state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab.chunk_readers import read_stable
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import records_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["count_states"]


def count_states(slab: Slab, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the number of records in each RunState; the item of SPLIT is the number of damaged places.

    `spans` are pairs of the first chunk of a span and its generation.  If the owner reopens a chunk, the function reads
    the chunk again.
    """
    counts = [0] * len(RunState)
    for chunk, generation in spans:
        for state, records in read_stable(slab, chunk, generation, lambda chunk: _counts_in(slab, chunk)):
            counts[state] += records
    return counts


def _counts_in(slab: Slab, chunk: int) -> Iterator[tuple[RunState, int]]:
    """Yield (state, number of records) of the records of a chunk; (SPLIT, 1) for a damaged run or record."""
    try:
        for offset, run in runs_of(slab, chunk):
            yield from _counts_of(slab, chunk, offset, run)
    except SlabError:
        yield RunState.SPLIT, 1


def _counts_of(slab: Slab, chunk: int, offset: int, run: Run) -> Iterator[tuple[RunState, int]]:
    if run.state not in _READ_RECORDS_IN:
        yield run.state, run.records
        return
    try:
        for _, record in records_of(slab, chunk, offset, run):
            yield RunState(record.word & 0xFF) if run.state is RunState.SPLIT else run.state, 1
    except SlabError:
        yield RunState.SPLIT, 1


_READ_RECORDS_IN: Final = frozenset({RunState.OPEN, RunState.SPLIT})
"""States of a run whose records are read one by one: a recovery reads them too, and must count the same damage."""
