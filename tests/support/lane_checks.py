"""Check the slab after messages went through lanes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import Segment, name_of, read_run, segment_of, segment_records
from bruce_mp.slab.tables import TopicTable
from support.slabs import Input, contents, datagram

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

Message = tuple[bytes, bytes, bytes, int | None]


def send(sender: Input, batch: list[Message]) -> None:
    sender.receive([datagram(*message, timestamp=-5) for message in batch])


def records(slab: Slab) -> dict[int, tuple[bytes, bytes, int]]:
    """Return value, key and partition key by arrival number; each number must be unique."""
    found = contents(slab)
    by_arrival = {content.arrival: (content.value, content.key, content.partition_key) for content in found}
    assert len(by_arrival) == len(found)
    return by_arrival


def expected(batches: list[list[Message]]) -> dict[int, tuple[bytes, bytes, int]]:
    sent = [message for batch in batches for message in batch]
    return {arrival: (value, key, number or 0) for arrival, (_, value, key, number) in enumerate(sent)}


def check_runs(slab: Slab, segments: list[Segment], batches: list[list[Message]]) -> None:
    """Check that segments agree with their runs, runs with their records, and every stream is in order."""
    sent = [message for batch in batches for message in batch]
    streams: dict[tuple[bytes, int | None], list[int]] = defaultdict(list)
    for segment in segments:
        run = read_run(slab, segment.chunk, segment.run)
        assert segment == segment_of(segment.chunk, segment.run, run)
        found = [record for _, record in segment_records(slab, segment)]
        sizes = [record.key_length + record.value_length for record in found]
        assert run.state is RunState.FILLED
        assert (run.payload, run.largest_payload, run.min_timestamp) == (sum(sizes), max(sizes), -5)
        assert run.first_arrival == found[0].arrival
        topic = slab_topic(slab, segment)
        for record in found:
            assert sent[record.arrival][0] == topic
            assert record.flags == run.flags == (1 if sent[record.arrival][3] is not None else 0)
            assert (record.partition, record.sequence, record.epoch) == (-1, -1, -1)
            assert run.partition_index in {-1, record.partition_key % max(1, run.partition_count)}
            streams[topic, sent[record.arrival][3]].append(record.arrival)
    assert all(arrivals == sorted(arrivals) for arrivals in streams.values())


def slab_topic(slab: Slab, segment: Segment) -> bytes:
    run = read_run(slab, segment.chunk, segment.run)
    return TopicTable(slab).name_of(run.topic) if run.topic else name_of(slab, segment.chunk, segment.run, run)
