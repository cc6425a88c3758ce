"""Record batches: kafka-python and this module read each other's batches, and other input is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.record_batch import HEADER_BYTES, Producer, encode_varint, wrap_int64
from support.examples import examples
from support.record_batches import (
    KafkaRecord,
    RecordBatch,
    VarintReader,
    advance_sequence,
    batch_of,
    encode_records,
    read_batches,
    whole_batch,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.integers(0, 1 << 50)
KEYS = st.none() | st.binary(min_size=1, max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=9).map(str.encode), st.none() | st.binary(max_size=9)), max_size=3)
RECORDS = st.builds(KafkaRecord, timestamp=TIMES, key=KEYS, value=KEYS, headers=HEADERS.map(tuple))


def the_batch(data: bytes) -> RecordBatch:
    (batch,) = read_batches(data)
    return batch


def numbered(records: list[KafkaRecord], base: int = 0) -> list[KafkaRecord]:
    return [record._replace(offset=base + index) for index, record in enumerate(records)]


# --- against kafka-python ---------------------------------------------------------------------------------------------
def read_by_kafka_python(data: bytes) -> list[KafkaRecord]:
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [KafkaRecord(one.timestamp, one.key, one.value, headers_of(one), one.offset) for one in batch]


def headers_of(record: Any) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((name.encode(), value) for name, value in record.headers)


@given(records=st.lists(RECORDS, min_size=1, max_size=20), codec=st.sampled_from(Codec))
@examples(40)
def test_kafka_python_reads_written_batches(records: list[KafkaRecord], codec: Codec) -> None:
    assert read_by_kafka_python(batch_of(records, codec)) == numbered(records)


@given(records=st.lists(RECORDS, min_size=1, max_size=20), base=st.integers(0, 2**31 - 1))
@examples(75)
def test_written_batches_equal_kafka_python(records: list[KafkaRecord], base: int) -> None:
    producer = Producer(4711, 3, base)
    theirs = DefaultRecordBatchBuilder(2, 0, False, *producer, 1 << 20)
    for index, record in enumerate(records):
        headers = [(name.decode(), value) for name, value in record.headers]
        theirs.append(index, timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)
    # kafka-python writes 0 for an unknown leader epoch; the CRC does not cover this field.
    expected = bytearray(theirs.build())
    expected[12:16] = b"\xff\xff\xff\xff"
    assert batch_of(records, producer=producer) == bytes(expected)


def test_header_fields_match_the_arguments() -> None:
    records = [KafkaRecord(1000, b"k", b"v"), KafkaRecord(900, None, b"w"), KafkaRecord(1500, b"l", None)]
    theirs = MemoryRecords(batch_of(records, Codec.ZSTD, Producer(7, 2, 40))).next_batch()
    ours = the_batch(batch_of(records, Codec.ZSTD, Producer(7, 2, 40))).header
    assert (theirs.base_offset, theirs.last_offset_delta, theirs.leader_epoch) == (0, 2, -1)
    assert (theirs.first_timestamp, theirs.max_timestamp) == (1000, 1500)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (7, 2, 40)
    assert (theirs.compression_type, theirs.is_transactional, theirs.is_control_batch) == (4, False, False)
    assert (ours.first_timestamp, ours.max_timestamp, ours.record_count) == (1000, 1500, 3)
    assert (ours.codec, ours.producer, ours.magic) == (Codec.ZSTD, Producer(7, 2, 40), 2)


# --- our own round trip -----------------------------------------------------------------------------------------------
@given(st.lists(INT64, min_size=1, max_size=6), st.sampled_from(Codec))
@examples(40)
@example([-1, 1 << 62, -(1 << 63), (1 << 63) - 1], Codec.NONE)
def test_any_timestamp_survives(times: list[int], codec: Codec) -> None:
    records = [KafkaRecord(time, None, b"v") for time in times]
    batch = the_batch(batch_of(records, codec))
    assert batch.records() == numbered(records)
    assert (batch.header.first_timestamp, batch.header.max_timestamp) == (times[0], max(times))


def test_empty_key_and_value_are_null() -> None:
    (record,) = the_batch(batch_of([KafkaRecord(1, b"", b"")])).records()
    assert (record.key, record.value) == (None, None)


def test_empty_values_stay_empty_on_demand() -> None:
    section = encode_records([KafkaRecord(1, b"", b""), KafkaRecord(1, None, None)], empty_value_as_null=False)
    records = the_batch(whole_batch(section, 2, 1, 1)).records()
    assert [(record.key, record.value) for record in records] == [(None, b""), (None, None)]


def test_consecutive_batches_are_read_from_their_base_offsets() -> None:
    first, second = batch_of([KafkaRecord(1, b"a", b"b")] * 2), bytearray(batch_of([KafkaRecord(2, b"c", b"d")]))
    second[:8] = (2).to_bytes(8, "big")  # a broker sets the base offset; no CRC covers it
    found = [record for batch in read_batches(first + bytes(second)) for record in batch.records()]
    assert [record.offset for record in found] == [0, 1, 2]


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        whole_batch(b"", 0, 0, 0)


@pytest.mark.parametrize(("base", "count", "after"), [(0, 5, 5), (2**31 - 1, 1, 0), (2**31 - 3, 10, 7)])
def test_sequence_numbers_wrap(base: int, count: int, after: int) -> None:
    assert advance_sequence(base, count) == after


# --- damage -----------------------------------------------------------------------------------------------------------
WHOLE = batch_of([KafkaRecord(1_000, b"key", b"value", ((b"h", b"x"),)), KafkaRecord(2_000, None, b"w" * 200)])


def is_refused(data: bytes) -> bool:
    try:
        list(read_batches(data))
    except RemoteProtocolError:
        return True
    return False


def test_a_truncated_batch_is_refused() -> None:
    assert [size for size in range(1, len(WHOLE) + 1) if not is_refused(WHOLE[:size])] == [len(WHOLE)]


def test_any_damage_after_the_leader_epoch_is_detected() -> None:
    damaged = ((at, WHOLE[:at] + bytes([WHOLE[at] ^ 0x10]) + WHOLE[at + 1 :]) for at in range(16, len(WHOLE)))
    assert [at for at, data in damaged if not is_refused(data)] == []


@given(st.binary(max_size=300))
@examples(150)
def test_random_bytes_are_refused(data: bytes) -> None:
    if data:
        with pytest.raises(RemoteProtocolError):
            list(read_batches(data))


@given(section=st.binary(max_size=60), count=st.integers(1, 2**31 - 1))
@examples(150)
def test_random_records_with_a_valid_crc_are_read_or_refused(section: bytes, count: int) -> None:
    batch = the_batch(whole_batch(section, count, 0, 0))
    with suppress(RemoteProtocolError):
        batch.records()


@pytest.mark.parametrize(
    ("section", "count", "complaint"),
    [
        (encode_records([KafkaRecord(1, b"k", b"v")]), 2, "does not end"),
        (encode_records([KafkaRecord(1, b"k", b"v")] * 2), 1, "left behind"),
        (b"\x04" + encode_records([KafkaRecord(1, b"k", b"v")])[1:], 1, "claims 2 bytes and has"),
        (b"\x0e\x00\x00\x00\x01\x01\x02\x01", 1, "has no name"),
        (b"\x0e\x00\x00\x00\x03\x01\x00\x00", 1, "-2 bytes"),
    ],
)
def test_records_that_contradict_the_header_are_refused(section: bytes, count: int, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        the_batch(whole_batch(section, count, 0, 0)).records()


def test_message_format_1_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="format 1"):
        list(read_batches(WHOLE[:16] + b"\x01" + WHOLE[17:]))


def test_header_has_61_bytes() -> None:
    assert HEADER_BYTES == 61


# --- varints ----------------------------------------------------------------------------------------------------------
@given(INT64)
def test_varints_decode_unchanged(value: int) -> None:
    encoded = encode_varint(value)
    assert VarintReader(encoded).varint() == value
    assert len(encoded) <= 10


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (-1, b"\x01"), (1, b"\x02"), (63, b"\x7e"), (64, b"\x80\x01"), (-65, b"\x81\x01")],
)
def test_known_varints_are_encoded(value: int, encoded: bytes) -> None:
    assert encode_varint(value) == encoded


@given(st.integers(-(1 << 70), 1 << 70))
def test_wrap_int64_wraps_to_64_bits(value: int) -> None:
    wrapped = wrap_int64(value)
    assert -(1 << 63) <= wrapped < 1 << 63
    assert (wrapped - value) % (1 << 64) == 0
