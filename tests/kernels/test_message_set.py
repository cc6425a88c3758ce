"""Encoded message sets: known bytes, kafka-python's encoder and decoder, and segments with wrong fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from bruce_mp.kernels import encode_message_set
from bruce_mp.protocol.kafka.compression import Codec, compress
from bruce_mp.protocol.kafka.message_set import MessageFormat, wrap_set
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from support.examples import examples
from support.put_records import NULL_AND_EMPTY, put_null_and_empty, put_records
from support.record_batches import KafkaRecord
from support.slabs import new_slab

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

ROOMY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=16, landing_slot_size=64)
NOW: Final = 1_700_000_000_000
NO_TIME: Final = -1
UNLIMITED: Final = 1 << 40

FORMATS: Final = (MessageFormat.V0, MessageFormat.V1)
timestamps = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, NOW]) | st.integers(NOW, NOW + 10_000)
sizes = st.integers(0, 300) | st.sampled_from([0, 8191, 8192, 8193, 100_000])
keys = st.binary(max_size=10) | st.sampled_from([63, 8192]).map(bytes)
lists = st.lists(
    st.tuples(timestamps, keys, sizes.map(bytes)).map(lambda fields: KafkaRecord(*fields)), min_size=1, max_size=6
)
"""Records in the slab's form: an empty key or value is b"", not None."""


def as_kafka_has_them(records: list[KafkaRecord], message_format: MessageFormat) -> list[KafkaRecord]:
    """Return records in the format's form: empty is null, with the format's numbers and timestamps."""
    timed = message_format is MessageFormat.V1
    return [
        KafkaRecord(
            record.timestamp if timed else NO_TIME,
            record.key or None,
            record.value or None,
            offset=number if timed else 0,
        )
        for number, record in enumerate(records)
    ]


def encoded_by_kafka_python(records: list[KafkaRecord], message_format: MessageFormat) -> bytes:
    builder = LegacyRecordBatchBuilder(int(message_format), 0, UNLIMITED)
    for record in as_kafka_has_them(records, message_format):
        builder.append(record.offset, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def read_by_kafka_python(data: bytes) -> list[KafkaRecord]:
    """Decode message sets and wrappers, with a check of their checksums."""
    found = []
    for batch in MemoryRecords(data):
        assert batch.validate_crc()
        for record in batch:
            assert record.validate_crc()
            timestamp = NO_TIME if record.timestamp is None else record.timestamp
            found.append(KafkaRecord(timestamp, record.key, record.value, offset=record.offset))
    return found


def test_format_0_encodes_to_known_bytes(slab: Slab) -> None:
    segments = put_records(slab, [[KafkaRecord(NOW, b"k", b"value"), KafkaRecord(NOW + 1, b"", b"")]])
    encoded = encode_message_set(slab, segments, MessageFormat.V0)
    assert encoded.data == bytes.fromhex(
        "0000000000000000 00000014 8faa5588 00 00 00000001 6b 00000005 76616c7565"
        "0000000000000000 0000000e a7ec6803 00 00 ffffffff ffffffff"
    )
    assert encoded.record_count == 2


def test_format_1_encodes_to_known_bytes(slab: Slab) -> None:
    segments = put_records(slab, [[KafkaRecord(NOW, b"k", b"value"), KafkaRecord(NOW + 1, b"", b"")]])
    encoded = encode_message_set(slab, segments, MessageFormat.V1)
    assert encoded.data == bytes.fromhex(
        "0000000000000000 0000001c 817899cb 01 00 0000018bcfe56800 00000001 6b 00000005 76616c7565"
        "0000000000000001 00000016 b79a1a58 01 00 0000018bcfe56801 ffffffff ffffffff"
    )
    assert (encoded.record_count, encoded.max_timestamp) == (2, NOW + 1)


@pytest.mark.parametrize("message_format", FORMATS)
def test_message_sets_omit_record_headers(slab: Slab, message_format: MessageFormat) -> None:
    headers = ((b"a", b"1"), (b"b", None))
    plain = put_records(slab, [[KafkaRecord(NOW, b"k", b"value"), KafkaRecord(NOW, b"k", b"value")]])
    headed = put_records(slab, [[KafkaRecord(NOW, b"k", b"value", headers), KafkaRecord(NOW, b"k", b"value", headers)]])
    assert encode_message_set(slab, headed, message_format) == encode_message_set(slab, plain, message_format)


@pytest.mark.parametrize("message_format", FORMATS)
@examples(30)
@given(runs=st.lists(lists, min_size=1, max_size=3))
def test_encode_message_set_equals_kafka_python(runs: list[list[KafkaRecord]], message_format: MessageFormat) -> None:
    records = [record for run in runs for record in run]
    if sum(len(record.value or b"") for record in records) > 48 * lay.CHUNK_BYTES:
        records = records[:1]
        runs = [records]
    with new_slab(ROOMY) as slab:
        encoded = encode_message_set(slab, put_records(slab, runs), message_format)
    assert encoded.data == encoded_by_kafka_python(records, message_format)
    assert encoded.record_count == len(records)
    assert encoded.max_timestamp == max(record.timestamp for record in records)


@pytest.mark.parametrize(
    ("message_format", "codec"),
    [
        (message_format, codec)
        for message_format in FORMATS
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
        if (message_format, codec) != (MessageFormat.V0, Codec.LZ4)
    ],
)
@examples(20)
@given(records=lists)
def test_kafka_python_unpacks_a_compressed_wrapper(
    records: list[KafkaRecord], message_format: MessageFormat, codec: Codec
) -> None:
    records = records[:3]
    with new_slab(ROOMY) as slab:
        data, count, latest = encode_message_set(slab, put_records(slab, [records]), message_format)
    whole = wrap_set(compress(codec, None, data), codec, message_format, count, latest)
    assert read_by_kafka_python(whole) == as_kafka_has_them(records, message_format)


@pytest.mark.parametrize("message_format", FORMATS)
def test_keeps_empty_preserves_empty_values_but_not_empty_keys(slab: Slab, message_format: MessageFormat) -> None:
    records = [KafkaRecord(NOW, b"", b""), KafkaRecord(NOW, b"k", b""), KafkaRecord(NOW, b"k", b"v")]
    data, _, _ = encode_message_set(slab, put_records(slab, [records]), message_format, keeps_empty_values=True)
    assert [(record.key, record.value) for record in read_by_kafka_python(data)] == [
        (None, b""),
        (b"k", b""),
        (b"k", b"v"),
    ]


@pytest.mark.parametrize("keeps_empty_values", [False, True])
@pytest.mark.parametrize("message_format", FORMATS)
def test_null_and_empty_of_version_2_do_not_depend_on_the_config(
    slab: Slab, message_format: MessageFormat, *, keeps_empty_values: bool
) -> None:
    data, _, _ = encode_message_set(
        slab, put_null_and_empty(slab), message_format, keeps_empty_values=keeps_empty_values
    )
    assert [(record.key, record.value) for record in read_by_kafka_python(data)] == NULL_AND_EMPTY


def test_encode_of_no_segment_is_empty(slab: Slab) -> None:
    assert encode_message_set(slab, [], MessageFormat.V1) == (b"", 0, 0)
