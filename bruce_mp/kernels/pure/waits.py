"""How long the messages of record batches have waited, by topic."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.slab.runs import arrived_ms, segment_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch

__all__ = ["Waits", "waits"]


class Waits(NamedTuple):
    """Of the batches of one topic: their messages, the bytes of these, and how long they have waited.

    `delays` are the messages by bucket, without those that are empty; `waited_ms` is the sum over all messages.
    """

    messages: int
    size: int
    waited_ms: int
    delays: dict[int, int]


def waits(slab: Slab, batches: Sequence[SentBatch], bounds_ms: Sequence[int], now_ms: int) -> dict[int, Waits]:
    """By topic, what the messages of batches have waited until `now_ms` on the steady clock.

    A message counts with the time at which its run began; one that is of another daemon's life, and so seems to be from
    the future, as just received.  Bucket i has the delays up to `bounds_ms[i]`, the last one those that are longer.
    Raises SlabError for a segment that is not what it claims.
    """
    sums: dict[int, Waits] = {}
    for batch in batches:
        for segment in batch.segments:
            segment_bounds(slab, segment)
            delay_ms = max(0, now_ms - arrived_ms(slab, segment))
            messages, size, waited_ms, delays = sums.get(batch.topic, Waits(0, 0, 0, {}))
            bucket, more = bisect_left(bounds_ms, delay_ms), segment.records
            delays[bucket] = delays.get(bucket, 0) + more
            sums[batch.topic] = Waits(messages + more, size + segment.payload, waited_ms + delay_ms * more, delays)
    return sums
