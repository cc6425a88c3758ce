"""How long the messages of record batches have waited, by topic."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab.runs import arrived_ms, segment_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["Waits", "waits"]


class Waits(NamedTuple):
    """Of batches: their messages, the bytes of these, and how long they have waited.

    `delays` are the messages by bucket, without those that are empty; `waited_ms` is the sum over all messages.
    """

    messages: int
    size: int
    waited_ms: int
    delays: dict[int, int]


def waits(
    slab: Slab, batches: Sequence[SentBatch], bounds_ms: Sequence[int], now_ms: int
) -> tuple[Waits, dict[int, Waits]]:
    """How long the messages of batches have waited until `now_ms` on the steady clock: of all of them, and by topic.

    A message counts with the time at which its run began; one that is of another daemon's life, and so seems to be from
    the future, as just received.  Bucket i has the delays up to `bounds_ms[i]`, the last one those that are longer.
    Raises SlabError for a segment that is not what it claims.
    """
    total = _NOTHING
    by_topic: dict[int, Waits] = {}
    for batch in batches:
        for segment in batch.segments:
            segment_bounds(slab, segment)
            delay_ms = max(0, now_ms - arrived_ms(slab, segment))
            more = (segment, delay_ms, bisect_left(bounds_ms, delay_ms))
            total = _plus(total, *more)
            by_topic[batch.topic] = _plus(by_topic.get(batch.topic, _NOTHING), *more)
    return total, by_topic


def _plus(sums: Waits, segment: Segment, delay_ms: int, bucket: int) -> Waits:
    messages, size, waited_ms, delays = sums
    records = segment.records
    delays = {**delays, bucket: delays.get(bucket, 0) + records}
    return Waits(messages + records, size + segment.payload, waited_ms + delay_ms * records, delays)


_NOTHING: Final = Waits(0, 0, 0, {})
