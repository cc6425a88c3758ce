"""Read the run headers of many segments at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import read_run, segment_bounds, segment_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["RunHeader", "group_by_partition", "read_headers"]


class RunHeader(NamedTuple):
    """The fields of a run's header that routing needs.

    `largest_payload` is that of the run's records in bytes, `arrived_ms` the steady time at which the run was opened.
    """

    topic: int
    flags: int
    partition_index: int
    partition_count: int
    largest_payload: int
    arrived_ms: int


def read_headers(slab: Slab, segments: Iterable[Segment]) -> list[RunHeader | None]:
    """Return the header of each segment's run; None for a segment that disagrees with its headers."""
    return [_read_header(slab, segment) for segment in segments]


def _read_header(slab: Slab, segment: Segment) -> RunHeader | None:
    try:
        segment_bounds(slab, segment)
        run = read_run(slab, segment.chunk, segment.run)
    except SlabError:
        return None
    return RunHeader(
        run.topic, run.flags, run.partition_index, run.partition_count, run.largest_payload, run.arrived_ms
    )


def group_by_partition(slab: Slab, segments: Sequence[Segment]) -> dict[tuple[int, int], list[Segment]]:
    """Group bound segments by topic number and partition, in order.

    Raises SlabError for a segment that disagrees with its headers.
    """
    groups: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        segment_bounds(slab, segment)
        run = read_run(slab, segment.chunk, segment.run)
        is_split = run.state is RunState.SPLIT
        partition = next(segment_records(slab, segment))[1].partition if is_split else run.partition
        groups.setdefault((run.topic, partition), []).append(segment)
    return groups
