"""Count what became of the messages of stream connections, chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

__all__ = ["Place", "Tally", "tally"]

_SOURCE: Final = lay.ARRIVAL_SOURCES - 1


class Place(NamedTuple):
    """How far a chunk is counted: its runs before number `run`, which begins at byte `at`."""

    run: int = 0
    at: int = lay.CHUNK_HEADER


class Tally(NamedTuple):
    """How far it is counted now; how many messages by source, state (DELIVERED, DISCARDED) and reason."""

    place: Place
    counts: dict[tuple[int, int, int], int]


def tally(slab: Slab, chunk: int, place: Place) -> Tally:
    """Count the runs of a chunk from `place` on, up to the first that is not settled.

    Only for the input that owns the chunk, and chunks that a stream input filled.  What is damaged ends the count.
    """
    counts: dict[tuple[int, int, int], int] = {}
    words, start = slab.words, slab.chunk_at(chunk)
    runs = words[(start + lay.CHUNK_RUNS) >> 2]
    number, at = place
    while number < runs:
        outcomes = list(_outcomes(slab, start + at))
        if not outcomes or not all(state in lay.SETTLED for _, state, _ in outcomes):
            break
        for outcome in outcomes:
            counts[outcome] = counts.get(outcome, 0) + 1
        at += words[(start + at + lay.RUN_SIZE) >> 2]
        number += 1
    return Tally(Place(number, at), counts)


def _outcomes(slab: Slab, run_at: int) -> Iterator[tuple[int, int, int]]:
    """Source, state and reason of each record of a run, in order; one that is not settled, if the run is not."""
    words, longs, view = slab.words, slab.longs, slab.view
    state, reason = words[run_at >> 2] & 0xFF, view[run_at + lay.RUN_REASON]
    is_split = state == State.SPLIT
    if not is_split and state not in lay.SETTLED:
        yield 0, state, 0
        return
    at = run_at + lay.RUN_HEADER + lay.align(words[(run_at + lay.RUN_NAME_LENGTH) >> 2] & 0xFFFF)
    end = run_at + words[(run_at + lay.RUN_SIZE) >> 2]
    while at < end:
        if is_split:
            state, reason = words[at >> 2] & 0xFF, view[at + lay.RECORD_REASON]
        yield longs[(at + lay.RECORD_ARRIVAL) >> 3] & _SOURCE, state, reason
        size = words[(at + lay.RECORD_KEY_LENGTH) >> 2] + words[(at + lay.RECORD_VALUE_LENGTH) >> 2]
        at += lay.align(lay.RECORD_HEADER + size + (words[(at + lay.RECORD_HEADERS_LENGTH) >> 2] >> 16))
