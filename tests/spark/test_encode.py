"""Arrow batches become the bytes that `protocol.client.messages` would write row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from struct import pack
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.protocol.client.key_hashes import KEY_HASHES, Partitioner, partition_key_of
from bruce_mp.protocol.client.messages import EmptyFields, Message, encode, parse_message
from bruce_mp.spark.derived_columns import hash_keys
from bruce_mp.spark.encode import STAMP_KEY, MessageEncoder
from bruce_mp.spark.errors import RowError

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

KEYED_FIELDS: Final = [(name, pa.binary()) for name in ("value", "key")]


def batch_of(rows: list[dict[str, Any]], columns: set[str]) -> pa.RecordBatch:
    names = [name for name in TYPES if name in columns]
    arrays = [
        pa.array(
            [row[name] if name != "timestamp" or row[name] is None else row[name] * 1000 for row in rows], TYPES[name]
        )
        for name in names
    ]
    return pa.record_batch(arrays, names)


def by_hand(row: dict[str, Any], columns: set[str], version: int) -> bytes:
    own = {name: row[name] if name in columns else None for name in TYPES}
    topic, key = (own["topic"] or "fallback").encode(), own["key"]
    number: Any = own["partition_key"]
    now = NOW if own["timestamp"] is None else own["timestamp"]
    if version == 0:
        return encode(topic, own["value"], key, number, timestamp_ms=now)
    body = pack(">hhh", 256 if number is None else 257, version, 0) + (b"" if number is None else pack(">i", number))
    body += pack(">h", len(topic)) + topic + pack(">q", now)
    for field in (key, own["value"]):
        body += pack(">i", -1 if field is None else len(field)) + (field or b"")
    return pack(">i", 8 + len(body)) + body + bytes(4)


@given(rows=st.lists(ROW, max_size=20), columns=st.sets(st.sampled_from(sorted(TYPES))), cut=st.integers(0, 20))
def test_rows_equal_the_reference_encoder(rows: list[dict[str, Any]], columns: set[str], cut: int) -> None:
    columns |= {"value"}
    needs_nulls = any(not row["value"] or ("key" in columns and row["key"] == b"") for row in rows)
    encoder = MessageEncoder(b"fallback", None)
    encoded = encoder.convert(batch_of(rows, columns))
    start = min(cut, len(rows))
    expected = [by_hand(row, columns, 2 if needs_nulls else 0) for row in rows]
    assert encoded.sizes.tolist() == [len(message) for message in expected]
    assert bytes(encoder.encode(encoded, 0, NOW)) == b"".join(expected)
    assert bytes(encoder.encode(encoded.slice(start, len(rows)), 0, NOW)) == b"".join(expected[start:])


@pytest.mark.parametrize(
    ("value", "key", "version"), [(b"v", b"k", 0), (b"v", None, 0), (b"v", b"", 2), (b"", b"k", 2), (None, b"k", 2)]
)
def test_only_batches_with_null_or_empty_fields_have_version_2(
    value: bytes | None, key: bytes | None, version: int
) -> None:
    batch = pa.record_batch({"value": [b"v", value], "key": [b"k", key]}, pa.schema(KEYED_FIELDS))
    assert MessageEncoder(b"t", None).convert(batch).version == version


def test_null_and_empty_values_and_keys_stay_what_they_are() -> None:
    batch = pa.record_batch({"value": [None, b"", b"v"], "key": [b"k", None, b""]}, pa.schema(KEYED_FIELDS))
    found = parsed_of(MessageEncoder(b"t", b"writer"), batch)
    assert [key for parsed in found for key, _ in parsed.headers] == [STAMP_KEY] * 3
    empty = [EmptyFields.NULL_VALUE, EmptyFields.EMPTY_VALUE, EmptyFields.EMPTY_KEY]
    assert [parsed.empty for parsed in found] == empty


def parsed_of(encoder: MessageEncoder, batch: pa.RecordBatch, first_number: int = 0) -> list[Message]:
    data, found = bytes(encoder.encode(encoder.convert(batch), first_number, NOW)), []
    while data:
        size = int.from_bytes(data[:4])
        parsed, data = parse_message(data[:size]), data[size:]
        assert isinstance(parsed, Message)
        found.append(parsed)
    return found


@pytest.mark.parametrize("first_number", [0, 41, 9_999, 99_999_999, 1_234_567_899_999_999])
def test_the_stamp_numbers_the_messages_and_names_their_writer(first_number: int) -> None:
    found = parsed_of(MessageEncoder(b"t", b"query/3/1/0"), pa.record_batch({"value": [b"a", b"bb"]}), first_number)
    stamps = [b"%016d %013d query/3/1/0" % (number, NOW) for number in (first_number, first_number + 1)]
    assert [parsed.headers for parsed in found] == [((STAMP_KEY, stamp),) for stamp in stamps]


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
    assert encoder.convert(table).version == 1
    assert [list(parsed.headers) for parsed in parsed_of(encoder, table)] == wanted


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_all_arrow_string_and_binary_types_are_accepted(kind: pa.DataType) -> None:
    encoder = MessageEncoder(b"t", None)
    value = pa.array([b"\xc3\xa9"], pa.binary()).cast(kind)
    data = bytes(encoder.encode(encoder.convert(pa.record_batch({"value": value})), 0, NOW))
    assert data == encode("t", b"\xc3\xa9", timestamp_ms=NOW)


def test_timestamps_before_the_epoch_are_rounded_down() -> None:
    encoder = MessageEncoder(b"t", None)
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)
    batch = pa.record_batch([pa.array([b"v"]), pa.array([moment], pa.timestamp("us", "UTC"))], ["value", "timestamp"])
    rows = encoder.convert(batch)
    assert bytes(encoder.encode(rows, 0, NOW)) == encode("t", b"v", timestamp_ms=-1)
    assert rows.minutes(NOW).tolist() == [-60_000]


@given(
    keys=st.lists(st.none() | st.binary(max_size=30), max_size=20),
    rule=st.sampled_from(sorted(KEY_HASHES)),
    start=st.integers(0, 5),
)
def test_a_partitioner_places_keys_as_the_reference_does(
    keys: list[bytes | None], rule: Partitioner, start: int
) -> None:
    column = pa.array(keys, pa.binary()).slice(min(start, len(keys)))
    is_placed = [key is not None and (key != b"" or rule is not Partitioner.CRC32) for key in column.to_pylist()]
    expected = [
        KEY_HASHES[rule](key) if placed else None for key, placed in zip(column.to_pylist(), is_placed, strict=True)
    ]
    assert hash_keys(column, rule).to_pylist() == expected


def test_a_given_partition_key_precedes_the_partitioner() -> None:
    batch = pa.record_batch({"value": ["v", "v", "v"], "key": ["k", "k", None], "partition_key": [7, None, None]})
    encoder = MessageEncoder(b"t", None, Partitioner.MURMUR2)
    assert [parsed.partition_key for parsed in parsed_of(encoder, batch)] == [7, partition_key_of(b"k"), None]


def test_a_long_partition_key_is_an_unsigned_number() -> None:
    batch = pa.record_batch({"value": ["v", "v"], "partition_key": pa.array([2**32 - 1, -(2**31)], pa.int64())})
    assert [parsed.partition_key for parsed in parsed_of(MessageEncoder(b"t", None), batch)] == [2**32 - 1, 2**31]


@pytest.mark.parametrize(
    ("zone", "local", "expected"),
    [
        ("UTC", "1970-01-01T00:00:01", 1_000),
        ("Europe/Berlin", "1970-01-01T01:00:01", 1_000),
        ("+02:00", "1970-01-01T02:00:01", 1_000),
        (None, datetime.fromtimestamp(1_700_000_000).isoformat(), 1_700_000_000_000),  # noqa: DTZ006 - this host's zone
    ],
)
def test_a_timestamp_without_zone_is_local_in_the_session(zone: str | None, local: str, expected: int) -> None:
    times = pa.array([datetime.fromisoformat(local), None], pa.timestamp("us"))
    batch = pa.record_batch({"value": ["v", "v"], "timestamp": times})
    encoder = MessageEncoder(b"t", None, time_zone=zone)
    assert [parsed.timestamp_ms for parsed in parsed_of(encoder, batch)] == [expected, NOW]


def test_an_unknown_time_zone_names_the_cast() -> None:
    batch = pa.record_batch({"value": ["v"], "timestamp": pa.array([0], pa.timestamp("us"))})
    with pytest.raises(RowError, match="cast the column to timestamp"):
        MessageEncoder(b"t", None, time_zone="GMT+8").convert(batch)
