"""A message that a broker refuses, in words for a person: its size and the beginning of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["describe"]

_KEY_PREFIX: Final = 32


def describe(slab: Slab, segment: Segment) -> str:
    """What a segment of refused messages is; of several, the first one's key."""
    offset, record = next(segment_records(slab, segment))
    at = slab.chunk_at(segment.chunk) + offset + lay.RECORD_HEADER
    key = bytes(slab.view[at : at + min(record.key_length, _KEY_PREFIX)])
    beginning = f"key {key!r}" if record.key_length <= _KEY_PREFIX else f"key beginning with {key!r}"
    if segment.records == 1:
        return f"a message of {segment.payload} bytes, {beginning}"
    return f"{segment.records} messages of {segment.payload} bytes together, the first with {beginning}"
