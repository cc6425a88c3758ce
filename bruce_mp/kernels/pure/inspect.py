"""Read the headers of segments' runs, and a segment's records: their timestamps, or copies of the messages.

`queue_chosen` reads headers, too, and queues the runs for which nothing is left to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.protocol.client.messages import EmptyFields, Message
from bruce_mp.protocol.client.record_headers import decode_headers
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import read_run, segment_bounds, segment_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = [
    "ChosenPartition",
    "RunHeader",
    "RunQueue",
    "TimeRange",
    "messages",
    "queue_chosen",
    "read_headers",
    "time_range",
]

# `_message` converts options to `EmptyFields` by value, so the values must be the same.
assert [*EmptyFields] == [lay.OPTION_EMPTY_KEY, lay.OPTION_NULL_VALUE, lay.OPTION_EMPTY_VALUE]


class RunHeader(NamedTuple):
    """The fields of a run's header that the router needs.

    `topic` is the topic's number; 0 = none.  `largest_payload` is the payload of the run's largest record, in bytes.
    `arrived_ms` is the steady time at which the run was opened.
    """

    topic: int
    flags: int
    partition_index: int
    partition_count: int
    largest_payload: int
    arrived_ms: int


def read_headers(slab: Slab, segments: Iterable[Segment]) -> list[RunHeader | None]:
    """Return the header of each segment's run; None if a segment disagrees with the headers of its chunk and run."""
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


class RunQueue(NamedTuple):
    """Segments for the dispatcher in `slot`, each with its partition, and the numbers of topics that were added."""

    slot: int
    segments: list[Segment]
    partitions: list[int]
    topics: list[int]


class ChosenPartition(NamedTuple):
    """The partition for a topic's runs, and the queue of its dispatcher."""

    partition: int
    queue: RunQueue


def queue_chosen(
    slab: Slab,
    segments: Iterable[Segment],
    choices: dict[int, ChosenPartition],
    choose: Callable[[int], ChosenPartition | None],
    max_payload: int,
    *,
    known: Mapping[int, object],
) -> tuple[list[tuple[Segment, RunHeader | None]], int]:
    """Append to queues the runs without partition keys of the topics that have a choice; `choices` is by topic number.

    For a topic without a choice the call asks `choose`, unless the run lies in a span.  A run with a record of more
    than `max_payload` bytes ends the choice of its topic.  `known` has the topic numbers in use.  Behind a run with
    another number, such as 0, the call appends no further run, because it may have the same topic.  Return the other
    runs, each with the result of `read_headers`, and the number of records in the appended runs.  No run overtakes one
    of the other runs, unless only one of them has partition keys, or they have different topics.
    """
    others: list[tuple[Segment, RunHeader | None]] = []
    passed_over: set[int] = set()
    record_count = 0
    has_unknown = False
    for segment in segments:
        header = _read_header(slab, segment)
        choice = None
        if header is not None and not header.flags & lay.FLAG_PARTITION_KEY:
            topic = header.topic
            choice = None if has_unknown else choices.get(topic)
            if choice is None and topic not in known:
                has_unknown = True
            if header.largest_payload > max_payload:
                choices.pop(topic, None)
                choice = None
            elif choice is None and not has_unknown and topic not in passed_over and not _is_in_span(slab, segment):
                choice = choose(topic)
            if choice is None:
                passed_over.add(topic)
        if choice is None:
            others.append((segment, header))
        else:
            choice.queue.segments.append(segment)
            choice.queue.partitions.append(choice.partition)
            record_count += segment.records
    return others, record_count


def _is_in_span(slab: Slab, segment: Segment) -> bool:
    return slab.words[(slab.chunk_at(segment.chunk) + lay.CHUNK_SPAN) >> 2] > 1


class TimeRange(NamedTuple):
    """The smallest and the largest timestamp of some records, in ms."""

    earliest: int
    latest: int


def time_range(slab: Slab, segment: Segment) -> TimeRange:
    """Return the range of the timestamps of a segment's records.  Raises SlabError for a damaged segment."""
    timestamps = [record.timestamp for _, record in segment_records(slab, segment)]
    return TimeRange(min(timestamps), max(timestamps))


def messages(slab: Slab, segment: Segment, topic: bytes, max_bytes: int | None) -> list[Message]:
    """Return copies of a segment's messages.

    If `max_bytes` is not None, a copy has at most the first `max_bytes` bytes of the key and of the value, and no
    record headers.
    """
    chunk_at = slab.chunk_at(segment.chunk)
    return [
        _message(slab, chunk_at + offset, record, topic, max_bytes) for offset, record in segment_records(slab, segment)
    ]


def _message(slab: Slab, at: int, record: Record, topic: bytes, max_bytes: int | None) -> Message:
    key_at = at + lay.RECORD_HEADER
    value_at = key_at + record.key_length
    key = bytes(slab.view[key_at : key_at + _at_most(record.key_length, max_bytes)])
    value = bytes(slab.view[value_at : value_at + _at_most(record.value_length, max_bytes)])
    headers_at = value_at + record.value_length
    headers = slab.view[headers_at : headers_at + (record.headers_length if max_bytes is None else 0)]
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return Message(topic, value, key, record.timestamp, partition_key, decode_headers(headers) or (), empty)


def _at_most(length: int, max_bytes: int | None) -> int:
    return length if max_bytes is None else min(length, max_bytes)
