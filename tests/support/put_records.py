"""Store records in a slab as an input does, for tests of readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.kernels.pure.lane import Lane, LaneHeader
from bruce_mp.protocol.client.messages import encode
from bruce_mp.protocol.client.record_headers import encode_headers
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import ChunkPool
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.runs import read_run
from support.slabs import INPUT_ROW, Input

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from support.record_batches import KafkaRecord


def as_claimed(slab: Slab, segments: Iterable[Segment]) -> list[ClaimedRun]:
    """Return whole runs of partition 0 as `claim_runs` does, but do not claim them."""
    headers = [(segment, read_run(slab, segment.chunk, segment.run)) for segment in segments]
    return [
        (segment, run.topic, 0, run.flags & lay.FLAG_PARTITION_KEY, segment.records, segment.payload, run.arrived_ms)
        for segment, run in headers
    ]


def put_records(slab: Slab, runs: list[list[KafkaRecord]], topic: int = 1) -> list[Segment]:
    """Store each list of records as a run in separate chunks."""
    pool = ChunkPool(slab, INPUT_ROW)
    segments = []
    for records in runs:
        buffer = b"".join(
            (record.key or b"") + (record.value or b"") + encode_headers(record.headers) for record in records
        )
        items = []
        at = 0
        for arrival, (timestamp, key, value, headers, _) in enumerate(records):
            value_at = at + len(key or b"")
            headers_at = value_at + len(value or b"")
            end = headers_at + len(encode_headers(headers))
            # partition key and options are 0
            items.append((arrival, timestamp, 0, 0, at, value_at, value_at, headers_at, headers_at, end))
            at = end
        overhead = lay.CHUNK_HEADER + lay.RUN_HEADER + len(records) * (lay.RECORD_HEADER + 8)  # 8: alignment
        span = 1 + (len(buffer) + overhead) // lay.CHUNK_BYTES
        chunk = pool.allocate(span, 0)
        assert chunk is not None
        lane = Lane(slab, LaneHeader(topic, b"", 0, -1, 0))
        lane.use_chunk(chunk, span)
        assert lane.append(memoryview(buffer), items, 0, 0) == len(items)
        segments.append(lane.close_run(HandoverTickets(slab, INPUT_ROW)))
    return segments


NULL_AND_EMPTY: Final[list[tuple[bytes | None, bytes | None]]] = [
    (key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")
]
"""Keys and values of the messages of `put_null_and_empty`."""


def put_null_and_empty(slab: Slab) -> list[Segment]:
    """Receive a message of each combination of null, empty and other bytes as key and value."""
    sender = Input(slab, topics=[(b"t", 1)])
    sender.receive([encode(b"t", value, key, timestamp_ms=1, keep_empty=True) for key, value in NULL_AND_EMPTY])
    return sender.close_all()
