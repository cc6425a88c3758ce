"""Gain and cost of compression by topic and codec.

A dispatcher sums gain and cost since its last report, and the status process sums all reports.  Once there are MAX_SUMS
sums, all further topics share one sum for each codec, under an empty topic name.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Final

import msgspec
from msgspec.structs import replace

__all__ = ["MAX_SUMS", "CompressionEvent", "CompressionSums"]

MAX_SUMS: Final = 1000
"""The maximum number of pairs of topic and codec with a sum; it limits the memory, as clients may invent topics."""


class CompressionEvent(msgspec.Struct, frozen=True, tag=True):
    """Gain and cost of compression for batches of a topic with a codec.

    The dispatcher compressed `tried` batches and sent `kept` of them compressed; it did not try to compress `skipped`
    batches. The tried batches had `plain_bytes` before and `packed_bytes` after compression, which took `micros` µs of
    CPU time.
    """

    topic: bytes
    codec: str
    tried: int = 0
    kept: int = 0
    skipped: int = 0
    plain_bytes: int = 0
    packed_bytes: int = 0
    micros: int = 0

    def plus(self, other: "CompressionEvent") -> "CompressionEvent":
        """Return the sum of this event and another of the same topic and codec."""
        topic, codec, *numbers = msgspec.structs.astuple(self)
        other_numbers = msgspec.structs.astuple(other)[2:]
        return CompressionEvent(topic, codec, *map(sum, zip(numbers, other_numbers, strict=True)))


class CompressionSums:
    """Compression events summed by topic and codec."""

    def __init__(self) -> None:
        self._sums: dict[tuple[bytes, str], CompressionEvent] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, event: CompressionEvent) -> None:
        if (event.topic, event.codec) not in self._sums and len(self._sums) >= MAX_SUMS:
            event = replace(event, topic=b"")
        before = self._sums.get((event.topic, event.codec))
        self._sums[event.topic, event.codec] = event if before is None else before.plus(event)

    def events(self) -> list[CompressionEvent]:
        """Return the sums, sorted by topic and codec."""
        return [self._sums[key] for key in sorted(self._sums)]

    def clear(self) -> None:
        self._sums.clear()
