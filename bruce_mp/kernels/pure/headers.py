"""The run headers of many segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import read_run, segment_bounds, segment_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["RunHead", "by_place", "read_headers"]


class RunHead(NamedTuple):
    """A run's header; `largest` is its largest payload; see `runs` for `arrived_ms`."""

    topic: int
    flags: int
    partition_index: int
    partition_count: int
    largest: int
    arrived_ms: int


def read_headers(slab: Slab, segments: Iterable[Segment]) -> list[RunHead | None]:
    """Return the head of each segment's run; None without a sound header."""
    return [_head(slab, segment) for segment in segments]


def _head(slab: Slab, segment: Segment) -> RunHead | None:
    try:
        segment_bounds(slab, segment)
        run = read_run(slab, segment.chunk, segment.run)
    except SlabError:
        return None
    return RunHead(run.topic, run.flags, run.partition_index, run.partition_count, run.largest, run.arrived_ms)


def by_place(slab: Slab, segments: Sequence[Segment]) -> dict[tuple[int, int], list[Segment]]:
    """Group segments by topic and by the partition to which they are bound, in order.

    Raises SlabError for a segment that disagrees with its headers.
    """
    places: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        segment_bounds(slab, segment)
        run = read_run(slab, segment.chunk, segment.run)
        is_split = run.state is RunState.SPLIT
        partition = next(segment_records(slab, segment))[1].partition if is_split else run.partition
        places.setdefault((run.topic, partition), []).append(segment)
    return places
