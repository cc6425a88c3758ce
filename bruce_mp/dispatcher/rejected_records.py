"""Descriptions of refused messages for the log: size and start of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["describe", "describe_record"]

_KEY_PREFIX: Final = 32
"""Bytes of a key in the log: enough to find the record, and little of its contents."""


def describe(slab: Slab, segment: Segment) -> str:
    """Describe a segment of refused messages, with the key of the first one."""
    offset, record = next(segment_records(slab, segment))
    if segment.records == 1:
        return describe_record(slab, segment.chunk, offset, record)
    key = _key_text(slab, segment.chunk, offset, record)
    return f"{segment.records} messages of {segment.payload} bytes together, the first with {key}"


def describe_record(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    """Describe the message at byte `offset` of a chunk by size and key."""
    return f"a message of {record.payload} bytes, {_key_text(slab, chunk, offset, record)}"


def _key_text(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    at = slab.chunk_at(chunk) + offset + lay.RECORD_HEADER
    key = bytes(slab.view[at : at + min(record.key_length, _KEY_PREFIX)])
    return f"key {key!r}" if record.key_length <= _KEY_PREFIX else f"key beginning with {key!r}"
