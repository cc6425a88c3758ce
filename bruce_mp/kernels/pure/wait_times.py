"""The waiting times of record batches' messages, in total and by topic."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.runs import arrived_ms, segment_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["WaitTimes", "wait_times"]


class WaitTimes(NamedTuple):
    """Sums over the messages of some batches: their number, payload in bytes and waiting time.

    `delays` has the number of messages in each bucket that is not empty, by the bucket's number.
    """

    message_count: int
    size: int
    waited_ms: int
    delays: dict[int, int]


def wait_times(
    slab: Slab, batches: Sequence[BuiltBatch], bounds_ms: Sequence[int], now_ms: int
) -> tuple[WaitTimes, dict[int, WaitTimes]]:
    """Return the waiting times of batches' messages until the steady time `now_ms`, in total and by topic number.

    The waiting time of a message begins when its run is opened.  It is 0 if the clock shows an earlier time, as it may
    after a reboot.  Bucket i is for waiting times up to `bounds_ms[i]`, the last bucket for all longer ones.  Raises
    SlabError for a segment that disagrees with the headers of its chunk and run.
    """
    total = _NO_WAITS
    by_topic: dict[int, WaitTimes] = {}
    for batch in batches:
        for segment in batch.segments:
            segment_bounds(slab, segment)  # raises SlabError for a damaged segment
            wait_ms = max(0, now_ms - arrived_ms(slab, segment))
            bucket = bisect_left(bounds_ms, wait_ms)
            total = _add_segment(total, segment, wait_ms, bucket)
            by_topic[batch.topic] = _add_segment(by_topic.get(batch.topic, _NO_WAITS), segment, wait_ms, bucket)
    return total, by_topic


def _add_segment(sums: WaitTimes, segment: Segment, wait_ms: int, bucket: int) -> WaitTimes:
    """Return `sums` with a segment added; each message of the segment has waited for `wait_ms`."""
    message_count, size, waited_ms, delays = sums
    records = segment.records
    delays = {**delays, bucket: delays.get(bucket, 0) + records}
    return WaitTimes(message_count + records, size + segment.payload, waited_ms + wait_ms * records, delays)


_NO_WAITS: Final = WaitTimes(0, 0, 0, {})
