"""Encoded records against the plain encoder and kafka-python's decoder, and segments with wrong fields.

The tests of wrong fields are for message sets, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from bruce_mp.errors import LocalProtocolError, SlabError
from bruce_mp.kernels import encode, encode_message_set, record_batch
from bruce_mp.protocol.kafka.message_set import MessageFormat
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from support.examples import examples
from support.headers import header_lists
from support.put_records import NULL_AND_EMPTY, put_null_and_empty, put_records
from support.record_batches import KafkaRecord, encode_records, read_batches, whole_batch
from support.slabs import new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

Encoder = Callable[["Slab", list["Segment"]], object]

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
ROOMY: Final = Geometry(chunks=640, topics=16, partitions=16, landing_slots=16, landing_slot_size=64)
NOW: Final = 1_700_000_000_000

timestamps = (
    st.integers(MIN_INT64, MAX_INT64)
    | st.sampled_from([MIN_INT64, MAX_INT64, -1, 0, NOW])
    | st.integers(NOW, NOW + 10_000)
)
sizes = st.integers(0, 300) | st.sampled_from([0, 63, 64, 8191, 8192, 8193, 16383, 16384, 200_000])
keys = st.binary(max_size=10) | st.sampled_from([63, 64, 8192]).map(bytes)
lists = st.lists(
    st.tuples(timestamps, keys, sizes.map(bytes), header_lists).map(lambda fields: KafkaRecord(*fields)),
    min_size=1,
    max_size=6,
)
"""Records in the slab's form: an empty key or value is b"", not None."""
LARGEST: Final = [KafkaRecord(NOW, bytes(8192), bytes(200_000), ((bytes(32767), bytes(30_000)),))] * 6


def read_by_kafka_python(data: bytes) -> list[KafkaRecord]:
    [batch] = list(MemoryRecords(data))
    assert batch.validate_crc()
    return [
        KafkaRecord(record.timestamp, record.key, record.value, _as_bytes(record.headers), record.offset)
        for record in batch
    ]


def _as_bytes(headers: list[tuple[str, bytes | None]]) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((key.encode(), value) for key, value in headers)


def nulls(records: list[KafkaRecord]) -> list[KafkaRecord]:
    """Return records in Kafka's form: empty is null, numbered from 0."""
    return [
        record._replace(key=record.key or None, value=record.value or None, offset=offset)
        for offset, record in enumerate(records)
    ]


@examples(40)
@given(runs=st.lists(lists, min_size=1, max_size=3))
@example(runs=[LARGEST] * 3)
def test_encode_equals_the_reference_encoder(runs: list[list[KafkaRecord]]) -> None:
    records = [record for run in runs for record in run]
    with new_slab(ROOMY) as slab:
        encoded = encode(slab, put_records(slab, runs))
    assert encoded.data == encode_records(records)
    assert encoded.record_count == len(records)
    assert encoded.first_timestamp == records[0].timestamp
    assert encoded.max_timestamp == max(record.timestamp for record in records)
    [batch] = read_batches(whole_batch(*encoded))
    assert batch.records() == nulls(records)


@examples(40)
@given(
    records=lists, producer=st.builds(Producer, st.integers(-1, MAX_INT64), st.integers(-1, 32766), st.integers(-1, 9))
)
def test_a_whole_batch_has_the_header_of_its_records(records: list[KafkaRecord], producer: Producer) -> None:
    with new_slab(ROOMY) as slab:
        segments = put_records(slab, [records])
        encoded = encode(slab, segments)
        header, data = record_batch(slab, segments, producer)
    assert data == encoded.data
    assert header + data == whole_batch(*encoded, producer=producer)


def test_an_empty_batch_is_refused() -> None:
    with new_slab(ROOMY) as slab, pytest.raises(LocalProtocolError):
        record_batch(slab, [], NO_PRODUCER)


def _readable(record: KafkaRecord) -> KafkaRecord:
    """Return headers with text keys, as kafka-python expects."""
    return record._replace(headers=tuple((key.hex()[:9].encode(), value) for key, value in record.headers))


@examples(30)
@given(records=lists)
def test_kafka_python_reads_an_encoded_batch(records: list[KafkaRecord]) -> None:
    first = records[0].timestamp
    records = [_readable(record) for record in records if abs(record.timestamp - first) < 2**62][:2]
    with new_slab(ROOMY) as slab:
        encoded = encode(slab, put_records(slab, [records]))
    assert read_by_kafka_python(whole_batch(*encoded)) == nulls(records)


def test_keeps_empty_preserves_empty_values_but_not_empty_keys(slab: Slab) -> None:
    records = [KafkaRecord(NOW, b"", b""), KafkaRecord(NOW, b"k", b""), KafkaRecord(NOW, b"k", b"v")]
    encoded = encode(slab, put_records(slab, [records]), keeps_empty_values=True)
    assert [(record.key, record.value) for record in read_by_kafka_python(whole_batch(*encoded))] == [
        (None, b""),
        (b"k", b""),
        (b"k", b"v"),
    ]


@pytest.mark.parametrize("keeps_empty_values", [False, True])
def test_null_and_empty_of_version_2_do_not_depend_on_the_config(slab: Slab, *, keeps_empty_values: bool) -> None:
    encoded = encode(slab, put_null_and_empty(slab), keeps_empty_values=keeps_empty_values)
    assert [(record.key, record.value) for record in read_by_kafka_python(whole_batch(*encoded))] == NULL_AND_EMPTY


def test_encode_handles_more_than_8192_records() -> None:
    records = [KafkaRecord(NOW + index * 3, b"", b"v") for index in range(9000)]
    with new_slab(Geometry(chunks=128, topics=16, partitions=16, landing_slots=16, landing_slot_size=64)) as slab:
        encoded = encode(slab, put_records(slab, [records]))
    assert encoded.data == encode_records(records)


def test_encode_of_no_segment_is_empty(slab: Slab) -> None:
    assert encode(slab, []) == (b"", 0, 0, 0)


@pytest.mark.parametrize("at", [0, 1, 3, 4, 5, 6])
def test_encode_refuses_damaged_headers(slab: Slab, at: int) -> None:
    [segment] = put_records(slab, [[KafkaRecord(NOW, b"k", b"v", ((b"a", b"1"),)), KafkaRecord(NOW, b"k", b"v")]])
    headers_at = slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_HEADER + 2
    slab.view[headers_at + at] ^= 0x40
    with pytest.raises(SlabError):
        encode(slab, [segment])


# --- all encoders ----------------------------------------------------------------------------------------------------
def set_0(slab: Slab, segments: list[Segment]) -> object:
    return encode_message_set(slab, segments, MessageFormat.V0)


def set_1(slab: Slab, segments: list[Segment]) -> object:
    return encode_message_set(slab, segments, MessageFormat.V1)


def batch(slab: Slab, segments: list[Segment]) -> object:
    return encode(slab, segments)


every_encoder = pytest.mark.parametrize("encoder", [batch, set_0, set_1])


@every_encoder
def test_encode_refuses_a_segment_that_does_not_match_its_run(slab: Slab, encoder: Encoder) -> None:
    [segment] = put_records(slab, [[KafkaRecord(NOW, b"k", b"value"), KafkaRecord(NOW, b"k", b"value")]])
    for changed in (
        segment._replace(records=3),
        segment._replace(records=2**32 - 1),
        segment._replace(records=0),
        segment._replace(first=segment.first - 8),
        segment._replace(first=segment.first + 4),
        segment._replace(first=2**32 - 8),
        segment._replace(run=segment.run + 8),
        segment._replace(run=2**32 - 8),
        segment._replace(chunk=2**32 - 1),
        segment._replace(chunk=segment.chunk + 1),
        segment._replace(generation=segment.generation + 1),
    ):
        with pytest.raises(SlabError):
            encoder(slab, [segment, changed])


@every_encoder
@pytest.mark.parametrize("field", [lay.RECORD_KEY_LENGTH, lay.RECORD_VALUE_LENGTH])
@pytest.mark.parametrize("which", [0, 1])
def test_encode_refuses_a_record_beyond_its_run(slab: Slab, encoder: Encoder, field: int, which: int) -> None:
    [segment] = put_records(slab, [[KafkaRecord(NOW, b"k", b"value"), KafkaRecord(NOW, b"k", b"value")]])
    at = slab.chunk_at(segment.chunk) + segment.first + which * (lay.RECORD_HEADER + 8) + field
    for length in (3, 1000, 2**32 - 10):
        slab.words[at >> 2] += length
        with pytest.raises(SlabError, match="end"):
            encoder(slab, [segment])
        slab.words[at >> 2] -= length


@every_encoder
def test_a_record_with_an_unknown_state_is_refused(slab: Slab, encoder: Encoder) -> None:
    segments = put_records(slab, [[KafkaRecord(NOW, b"", b"value")]])
    slab.view[slab.chunk_at(segments[0].chunk) + segments[0].first] = RunState.SPLIT
    with pytest.raises(SlabError, match="end"):
        encoder(slab, segments)
