"""The batch parser against the readable one, on good, damaged and random bytes, anywhere in a buffer."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import Failure
from bruce_mp.kernels.pure.parse import ParsedBatch, parse
from bruce_mp.protocol.client.messages import EmptyFields, Message, Rejection, encode, parse_message
from bruce_mp.protocol.client.record_headers import decode_headers
from support.examples import examples
from support.headers import header_lists

VECTORS: Final = {
    "A1": "00000023010000000000000274310000018bcfe56800000000000000000568656c6c6f",
    "A2": "00000025010000000000000274310000018bcfe56800000000026b6b0000000568656c6c6f",
    "A3": "0000001d01000000000000017800000000000000000000000000000000",
    "A4": "000000210100000000000003ff0022ffffffffffffffff000000000000000200ff",
    "P1": "0000002901010000000000003039000274310000018bcfe56800000000026b6b0000000568656c6c6f",
    "P2": "00000027010100000000ffffffff000274310000018bcfe56800000000000000000568656c6c6f",
    "P3": "00000023010100000000800000000001780000000000000001000000016b0000000176",
    "M1": "00000022010000000000000274310000018bcfe56800000000000000000568656c6c6f",
    "M2": "00000024010000000000000274310000018bcfe56800000000000000000568656c6c6f",
    "M3": "00000023010000000001000274310000018bcfe56800000000000000000568656c6c6f",
    "M4": "00000023010200000000000274310000018bcfe56800000000000000000568656c6c6f",
    "M5": "00000023010000030000000274310000018bcfe56800000000000000000568656c6c6f",
    "H1": "00000036010000010000000274310000018bcfe568000000000000000005"
    "68656c6c6f0000000f0001610000000131000162ffffffff",
    "H2": "00000027010000010000000274310000018bcfe56800000000000000000568656c6c6f00000000",
    "H3": "0000002d010100010000800000000001780000000000000001000000016b000000017600000006000000000000",
    "T1": "00000024010000020000000274310000018bcfe56800000000026b6bffffffff00000000",
    "T2": "00000024010000020000000274310000018bcfe56800000000026b6b0000000000000000",
    "T3": "0000002b01010002000000003039000274310000018bcfe56800000000000000000568656c6c6f00000000",
    "T4": "0000002a010000020000000274310000018bcfe56800ffffffffffffffff000000080001610000000131",
    "U1": "00000020010000020000000274310000018bcfe56800000000026b6bffffffff",
    "U2": "00000024010000020000000274310000018bcfe56800000000026b6bfffffffe00000000",
    "U3": "00000027010000020000000274310000018bcfe56800fffffffe0000000568656c6c6f00000000",
    "U4": "00000020010000000000000274310000018bcfe56800000000026b6bffffffff",
    "N1": "00000023010000010000000274310000018bcfe56800000000000000000568656c6c6f",
    "N2": "00000028010000010000000274310000018bcfe56800000000000000000568656c6c6f0000000000",
    "N3": "00000027010000010000000274310000018bcfe56800000000000000000568656c6c6fffffffff",
    "N4": "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f00000006000000000001",
    "N5": "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f000000060000fffffffe",
    "N6": "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f00000006ffff00000000",
    "N7": "00000036010000000000000274310000018bcfe568000000000000000005"
    "68656c6c6f0000000f0001610000000131000162ffffffff",
    "N8": "00000035010000010000000274310000018bcfe56800000000000000000568656c6c6f0000000e0001610000000131000162ffffff",
    "M6": "00000024010000000000000274310000018bcfe56800000000000000000568656c6c6f00",
    "M7": "0000002101000000000000000000018bcfe56800000000000000000568656c6c6f",
    "M8": "00000023010000000000000274310000018bcfe56800ffffffff0000000568656c6c6f",
    "M9": "00000023010000000000000274310000018bcfe56800000000000000000668656c6c6f",
    "M10": "0000000801000000",
    "M11": "00000007010000",
    "empty": "",
}

timestamps = st.integers(-(2**63), 2**63 - 1)
topics = st.binary(min_size=1, max_size=20) | st.sampled_from([b"t1", b"x" * 32767])
good = st.builds(
    lambda topic, value, key, timestamp, number, headers, keep: encode(
        topic, value, key, number, timestamp_ms=timestamp, headers=headers, keep_empty=keep
    ),
    topics,
    st.none() | st.just(b"") | st.binary(max_size=200),
    st.none() | st.just(b"") | st.binary(max_size=20),
    timestamps,
    st.none() | st.integers(0, 2**32 - 1),
    header_lists,
    st.booleans(),
)
edges = st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a good message with some bytes changed, cut or added, mostly with a correct Size."""
    data = bytearray(draw(good))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, min(60, len(data) - 1)) | st.integers(0, len(data) - 1))
        data[at] = draw(edges | st.integers(0, 255))
    keep = draw(st.integers(0, len(data)) | st.just(len(data)))
    data = data[:keep] + draw(st.binary(max_size=3))
    if draw(st.sampled_from([True, True, False])):
        data[:4] = len(data).to_bytes(4, "big")
    return bytes(data)


def outcomes(datagrams: list[bytes], first_arrival: int, before: bytes, after: bytes) -> list[Message | Rejection]:
    """Return the batch parser's result for adjacent datagrams in a buffer."""
    buffer = before + b"".join(datagrams) + after
    extents = []
    at = len(before)
    for data in datagrams:
        extents.append((at, len(data)))
        at += len(data)
    return as_oracle_says(parse(memoryview(buffer), extents, first_arrival), buffer, len(datagrams), first_arrival)


def as_oracle_says(batch: ParsedBatch, buffer: bytes, count: int, first_arrival: int) -> list[Message | Rejection]:
    found: dict[int, Message | Rejection] = {}
    for (topic, keyed), items in batch.groups.items():
        assert [item[0] for item in items] == sorted(item[0] for item in items)
        for arrival, timestamp, number, options, key_at, key_end, value_at, value_end, headers_at, end in items:
            assert arrival - first_arrival not in found
            key, value = buffer[key_at:key_end], buffer[value_at:value_end]
            headers = decode_headers(buffer[headers_at:end])
            assert headers is not None
            partition_key, empty = number if keyed else None, EmptyFields(options)
            found[arrival - first_arrival] = Message(topic, value, key, timestamp, partition_key, headers, empty)
    for slot, failure, api_key, version in batch.rejections:
        assert slot not in found
        readable = {
            Failure.MALFORMED: (api_key, version) if api_key else (None, None),
            Failure.UNSUPPORTED_API_KEY: (api_key, None),
            Failure.UNSUPPORTED_VERSION: (api_key, version),
        }
        found[slot] = Rejection(DiscardReason(failure), *readable[failure])
    return [found[slot] for slot in range(count)]


@pytest.mark.parametrize("data", [bytes.fromhex(text) for text in VECTORS.values()], ids=VECTORS.keys())
def test_documented_vectors_parse_as_the_reference_parser(data: bytes) -> None:
    assert outcomes([data], 7, b"", b"") == [parse_message(data)]
    assert outcomes([data], 7, b"\xff" * 5, b"\xff" * 70000) == [parse_message(data)]
    assert outcomes([data], 7, b"", bytes(70000)) == [parse_message(data)]


@examples(75)
@given(
    datagrams=st.lists(good | damaged() | st.binary(max_size=80), max_size=8),
    first_arrival=st.integers(0, 2**40),
    before=st.binary(max_size=4),
    after=st.binary(max_size=4) | st.just(bytes(100)),
)
def test_parse_equals_the_reference_parser(
    datagrams: list[bytes], first_arrival: int, before: bytes, after: bytes
) -> None:
    assert outcomes(datagrams, first_arrival, before, after) == [parse_message(data) for data in datagrams]


@examples(50)
@given(data=damaged(), behind=damaged())
def test_bytes_after_a_message_do_not_change_it(data: bytes, behind: bytes) -> None:
    """A slot of the landing zone still holds the bytes of an earlier datagram."""
    assume(len(behind) > len(data))
    assert outcomes([data], 0, b"", behind[len(data) :]) == [parse_message(data)]


def test_messages_that_are_skipped_keep_their_numbers() -> None:
    datagrams = [encode(b"t", b"%d" % i, timestamp_ms=i) for i in range(5)]
    buffer = b"".join(datagrams)
    extents = [(len(datagrams[0]) * i, len(datagrams[0])) for i in range(5)]
    batch = parse(memoryview(buffer), extents, 100, frozenset({100, 103}))
    [items] = batch.groups.values()
    assert [(item[0], item[1]) for item in items] == [(101, 1), (102, 2), (104, 4)]


def test_groups_are_by_topic_and_kind_in_order_of_their_first_message() -> None:
    datagrams = [
        encode(b"b", b"", timestamp_ms=0),
        encode(b"b", b"", partition_key=1, timestamp_ms=0),
        encode(b"a", b"", timestamp_ms=0),
        encode(b"b", b"", timestamp_ms=0),
    ]
    extents, at = [], 0
    for data in datagrams:
        extents.append((at, len(data)))
        at += len(data)
    groups = parse(memoryview(b"".join(datagrams)), extents, 0).groups
    assert [(group, [item[0] for item in items]) for group, items in groups.items()] == [
        ((b"b", False), [0, 3]),
        ((b"b", True), [1]),
        ((b"a", False), [2]),
    ]
