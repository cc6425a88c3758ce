"""Records that a broker refuses: their description in the log, and arrival times in place of refused timestamps.

The broker refused the batch before it wrote any record, so the dispatcher may resend the batch with the same sequence
numbers and other timestamps.  The dispatcher replaces the timestamp of a record only once, even after a crash, because
it does not replace a timestamp that equals the arrival time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import arrived_ms, segment_records
from bruce_mp.telemetry.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["describe", "restamp"]

_KEY_PREFIX_BYTES: Final = 32
"""How many bytes of a key the log shows: enough to find the record, without much of its contents."""
_TOLERANCE_MS: Final = 1000
"""The maximum difference of timestamps that count as equal.  Arrival times are on the steady clock; each conversion to
the wall clock rounds, and the wall clock's rate may change between two conversions."""


def describe(slab: Slab, segment: Segment) -> str:
    """Describe a segment of refused messages by its size and by the key of the first message."""
    offset, record = next(segment_records(slab, segment))
    if segment.records == 1:
        return _describe_record(slab, segment.chunk, offset, record)
    key = _key_text(slab, segment.chunk, offset, record)
    return f"{segment.records} messages of {segment.payload} bytes together, the first with {key}"


def _describe_record(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    return f"a message of {record.payload} bytes, {_key_text(slab, chunk, offset, record)}"


def _key_text(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    at = slab.chunk_at(chunk) + offset + lay.RECORD_HEADER
    key = bytes(slab.view[at : at + min(record.key_length, _KEY_PREFIX_BYTES)])
    return f"key {key!r}" if record.key_length <= _KEY_PREFIX_BYTES else f"key beginning with {key!r}"


def restamp(slab: Slab, segments: Iterable[Segment], indices: Collection[int]) -> tuple[int, str]:
    """Replace the timestamps of the records at `indices` of a batch by their arrival times.

    Return the number of changed records, and a description of the first changed record with its old timestamp.  A
    timestamp stays if it equals the arrival time, or if its record has OPTION_KEEPS_TIMESTAMP.  Raise SlabError for a
    damaged segment.
    """
    wall_offset_ms = wall_ms() - steady_ms()
    start_index, changed_count, first_changed = 0, 0, ""
    for segment in segments:
        chunk_offset, arrival_ms = slab.chunk_at(segment.chunk), arrived_ms(slab, segment) + wall_offset_ms
        for index, (offset, record) in enumerate(segment_records(slab, segment), start_index):
            if index in indices and _is_replaceable(record, arrival_ms):
                if not first_changed:
                    description = _describe_record(slab, segment.chunk, offset, record)
                    first_changed = f"{description}, had timestamp {record.timestamp}"
                slab.store_signed(chunk_offset + offset + lay.RECORD_TIMESTAMP, arrival_ms)
                changed_count += 1
        start_index += segment.records
    return changed_count, first_changed


def _is_replaceable(record: Record, arrival_ms: int) -> bool:
    return not record.options & lay.OPTION_KEEPS_TIMESTAMP and abs(record.timestamp - arrival_ms) > _TOLERANCE_MS
