"""Arrow batches become the bytes that `protocol.client.messages` would write row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from struct import unpack
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.protocol.client.messages import encode_any_partition, encode_partition_key
from bruce_mp.spark.encode import STAMP_KEY, MessageEncoder

NOW: Final = 1_700_000_000_123
ROW: Final = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=40),
        "key": st.none() | st.binary(max_size=10),
        "topic": st.none() | st.text("abcé", min_size=1, max_size=5),
        "partition_key": st.none() | st.integers(-(2**31), 2**31 - 1),
        "timestamp": st.none() | st.integers(-(2**40), 2**42),
    }
)
TYPES: Final = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition_key": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def batch_of(rows: list[dict[str, Any]], columns: set[str]) -> pa.RecordBatch:
    names = [name for name in TYPES if name in columns]
    arrays = [
        pa.array(
            [row[name] if name != "timestamp" or row[name] is None else row[name] * 1000 for row in rows], TYPES[name]
        )
        for name in names
    ]
    return pa.record_batch(arrays, names)


def by_hand(row: dict[str, Any], columns: set[str]) -> bytes:
    own = {name: row[name] if name in columns else None for name in TYPES}
    topic, value, key = own["topic"] or "fallback", own["value"] or b"", own["key"] or b""
    now = NOW if own["timestamp"] is None else own["timestamp"]
    if own["partition_key"] is None:
        return encode_any_partition(topic, value, key, timestamp_ms=now)
    return encode_partition_key(own["partition_key"], topic, value, key, timestamp_ms=now)


@given(rows=st.lists(ROW, max_size=20), columns=st.sets(st.sampled_from(sorted(TYPES))), cut=st.integers(0, 20))
def test_version_0_equals_the_reference_encoder(rows: list[dict[str, Any]], columns: set[str], cut: int) -> None:
    columns |= {"value"}
    encoder = MessageEncoder(b"fallback", None)
    encoded = encoder.rows(batch_of(rows, columns))
    start = min(cut, len(rows))
    expected = [by_hand(row, columns) for row in rows]
    assert encoded.sizes.tolist() == [len(message) for message in expected]
    assert bytes(encoder.encode(encoded, 0, NOW)) == b"".join(expected)
    assert bytes(encoder.encode(encoded.slice(start, len(rows)), 0, NOW)) == b"".join(expected[start:])


def headers_of(message: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the record headers of an AnyPartition message of version 1, parsed by hand."""
    assert unpack(">ihh", message[:8]) == (len(message), 256, 1)
    at = 12 + int.from_bytes(message[10:12]) + 8
    for _ in range(2):
        at += 4 + int.from_bytes(message[at : at + 4])
    size = int.from_bytes(message[at : at + 4])
    at += 4
    assert at + size == len(message)
    found: list[tuple[bytes, bytes | None]] = []
    while at < len(message):
        (length,) = unpack(">h", message[at : at + 2])
        key, at = message[at + 2 : at + 2 + length], at + 2 + length
        (length,) = unpack(">i", message[at : at + 4])
        found.append((key, None if length < 0 else message[at + 4 : at + 4 + length]))
        at += 4 + max(length, 0)
    return found


@pytest.mark.parametrize("first_number", [0, 41, 9_999, 99_999_999, 1_234_567_899_999_999])
def test_the_stamp_numbers_the_messages_and_names_their_writer(first_number: int) -> None:
    encoder = MessageEncoder(b"t", b"query/3/1/0")
    data = bytes(encoder.encode(encoder.rows(pa.record_batch({"value": [b"a", b"bb"]})), first_number, NOW))
    first = int.from_bytes(data[:4])
    for number, message in enumerate((data[:first], data[first:]), first_number):
        ((key, value),) = headers_of(message)
        assert key == STAMP_KEY
        assert value is not None
        assert value == b"%016d %013d query/3/1/0" % (number, NOW)


HEADER_LISTS: Final = st.lists(
    st.none()
    | st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=5)})),
    min_size=1,
    max_size=8,
)
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(lists=HEADER_LISTS, start=st.integers(0, 3))
def test_headers_are_encoded_unchanged(lists: list[list[dict[str, Any]] | None], start: int) -> None:
    table = pa.record_batch([pa.array([b"v"] * len(lists)), pa.array(lists, HEADERS_TYPE)], ["value", "headers"])
    table = table.slice(min(start, len(lists) - 1))
    wanted = [[(h["key"].encode(), h["value"]) for h in one or []] for one in lists[min(start, len(lists) - 1) :]]
    encoder = MessageEncoder(b"t", None)
    rows = encoder.rows(table)
    data = bytes(encoder.encode(rows, 0, NOW))
    at = 0
    for size, headers in zip(rows.sizes.tolist(), wanted, strict=True):
        assert headers_of(data[at : at + size]) == headers
        at += size
    assert at == len(data)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_all_arrow_string_and_binary_types_are_accepted(kind: pa.DataType) -> None:
    encoder = MessageEncoder(b"t", None)
    value = pa.array([b"\xc3\xa9"], pa.binary()).cast(kind)
    data = bytes(encoder.encode(encoder.rows(pa.record_batch({"value": value})), 0, NOW))
    assert data == encode_any_partition("t", b"\xc3\xa9", timestamp_ms=NOW)


def test_timestamps_before_the_epoch_are_rounded_down() -> None:
    encoder = MessageEncoder(b"t", None)
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)
    batch = pa.record_batch([pa.array([b"v"]), pa.array([moment], pa.timestamp("us", "UTC"))], ["value", "timestamp"])
    rows = encoder.rows(batch)
    assert bytes(encoder.encode(rows, 0, NOW)) == encode_any_partition("t", b"v", timestamp_ms=-1)
    assert rows.minutes(NOW).tolist() == [-60_000]
