"""The client format against the protocol's own vectors, its table of malformed messages, and itself."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason, LocalProtocolError
from bruce_mp.protocol.client.messages import (
    MAX_MESSAGE,
    EmptyFields,
    Message,
    Rejection,
    encode,
    encode_message,
    parse_message,
)
from support.headers import header_lists

NOW = 1_700_000_000_000
MALFORMED = Rejection(DiscardReason.MALFORMED)
MALFORMED_HEADERS = Rejection(DiscardReason.MALFORMED, 256, 1)
MALFORMED_NULLS = Rejection(DiscardReason.MALFORMED, 256, 2)
MALFORMED_ANY = Rejection(DiscardReason.MALFORMED, 256, 0)
MALFORMED_KEYED = Rejection(DiscardReason.MALFORMED, 257, 0)

A1 = "00000023010000000000000274310000018bcfe56800000000000000000568656c6c6f"
A2 = "00000025010000000000000274310000018bcfe56800000000026b6b0000000568656c6c6f"
A3 = "0000001d01000000000000017800000000000000000000000000000000"
A4 = "000000210100000000000003ff0022ffffffffffffffff000000000000000200ff"
P1 = "0000002901010000000000003039000274310000018bcfe56800000000026b6b0000000568656c6c6f"
P2 = "00000027010100000000ffffffff000274310000018bcfe56800000000000000000568656c6c6f"
H1 = "00000036010000010000000274310000018bcfe56800000000000000000568656c6c6f0000000f0001610000000131000162ffffffff"
H2 = "00000027010000010000000274310000018bcfe56800000000000000000568656c6c6f00000000"
H3 = "0000002d010100010000800000000001780000000000000001000000016b000000017600000006000000000000"
T1 = "00000024010000020000000274310000018bcfe56800000000026b6bffffffff00000000"
T2 = "00000024010000020000000274310000018bcfe56800000000026b6b0000000000000000"
T3 = "0000002b01010002000000003039000274310000018bcfe56800000000000000000568656c6c6f00000000"
T4 = "0000002a010000020000000274310000018bcfe56800ffffffffffffffff000000080001610000000131"
P3 = "00000023010100000000800000000001780000000000000001000000016b0000000176"

GOOD = [
    pytest.param(A1, Message(b"t1", b"hello", b"", NOW, None), id="A1"),
    pytest.param(A2, Message(b"t1", b"hello", b"kk", NOW, None), id="A2"),
    pytest.param(A3, Message(b"x", b"", b"", 0, None), id="A3"),
    pytest.param(A4, Message(b"\xff\x00\x22", b"\x00\xff", b"", -1, None), id="A4"),
    pytest.param(P1, Message(b"t1", b"hello", b"kk", NOW, 12345), id="P1"),
    pytest.param(P2, Message(b"t1", b"hello", b"", NOW, 0xFFFFFFFF), id="P2"),
    pytest.param(P3, Message(b"x", b"v", b"k", 1, 0x80000000), id="P3"),
    pytest.param(H1, Message(b"t1", b"hello", b"", NOW, None, ((b"a", b"1"), (b"b", None))), id="H1"),
    pytest.param(H3, Message(b"x", b"v", b"k", 1, 0x80000000, ((b"", b""),)), id="H3"),
    pytest.param(T1, Message(b"t1", b"", b"kk", NOW, None, (), EmptyFields.NULL_VALUE), id="T1"),
    pytest.param(T2, Message(b"t1", b"", b"kk", NOW, None, (), EmptyFields.EMPTY_VALUE), id="T2"),
    pytest.param(T3, Message(b"t1", b"hello", b"", NOW, 12345, (), EmptyFields.EMPTY_KEY), id="T3"),
    pytest.param(T4, Message(b"t1", b"", b"", NOW, None, ((b"a", b"1"),), EmptyFields.NULL_VALUE), id="T4"),
]

BAD = [
    pytest.param(
        "00000022010000000000000274310000018bcfe56800000000000000000568656c6c6f", MALFORMED, id="M1 size too small"
    ),
    pytest.param(
        "00000024010000000000000274310000018bcfe56800000000000000000568656c6c6f", MALFORMED, id="M2 size too large"
    ),
    pytest.param(
        "00000023010000000001000274310000018bcfe56800000000000000000568656c6c6f", MALFORMED_ANY, id="M3 flags"
    ),
    pytest.param(
        "00000023010200000000000274310000018bcfe56800000000000000000568656c6c6f",
        Rejection(DiscardReason.UNSUPPORTED_API_KEY, 258),
        id="M4 API key",
    ),
    pytest.param(
        "00000023010000030000000274310000018bcfe56800000000000000000568656c6c6f",
        Rejection(DiscardReason.UNSUPPORTED_VERSION, 256, 3),
        id="M5 version",
    ),
    pytest.param(
        "00000024010000000000000274310000018bcfe56800000000000000000568656c6c6f00", MALFORMED_ANY, id="M6 trailing byte"
    ),
    pytest.param("0000002101000000000000000000018bcfe56800000000000000000568656c6c6f", MALFORMED_ANY, id="M7 no topic"),
    pytest.param(
        "00000023010000000000000274310000018bcfe56800ffffffff0000000568656c6c6f", MALFORMED_ANY, id="M8 key size -1"
    ),
    pytest.param(
        "00000023010000000000000274310000018bcfe56800000000000000000668656c6c6f", MALFORMED_ANY, id="M9 value size"
    ),
    pytest.param("0000000801000000", MALFORMED_ANY, id="M10 header only"),
    pytest.param("00000007010000", MALFORMED, id="M11 seven bytes"),
    pytest.param("00000003", MALFORMED, id="M12 size 3"),
    pytest.param("ffffffff", MALFORMED, id="M13 size -1"),
    pytest.param("00000004", MALFORMED, id="M14 size 4"),
    pytest.param(
        "00000023010000010000000274310000018bcfe56800000000000000000568656c6c6f",
        MALFORMED_HEADERS,
        id="N1 no headers size",
    ),
    pytest.param(
        "00000028010000010000000274310000018bcfe56800000000000000000568656c6c6f0000000000",
        MALFORMED_HEADERS,
        id="N2 a byte behind the headers",
    ),
    pytest.param(
        "00000027010000010000000274310000018bcfe56800000000000000000568656c6c6fffffffff",
        MALFORMED_HEADERS,
        id="N3 headers size -1",
    ),
    pytest.param(
        "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f00000006000000000001",
        MALFORMED_HEADERS,
        id="N4 header value too long",
    ),
    pytest.param(
        "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f000000060000fffffffe",
        MALFORMED_HEADERS,
        id="N5 value size -2",
    ),
    pytest.param(
        "0000002d010000010000000274310000018bcfe56800000000000000000568656c6c6f00000006ffff00000000",
        MALFORMED_HEADERS,
        id="N6 key size -1",
    ),
    pytest.param(
        "00000036010000000000000274310000018bcfe56800000000000000000568656c6c6f0000000f0001610000000131000162ffffffff",
        MALFORMED_ANY,
        id="N7 headers in version 0",
    ),
    pytest.param(
        "00000035010000010000000274310000018bcfe56800000000000000000568656c6c6f0000000e0001610000000131000162ffffff",
        MALFORMED_HEADERS,
        id="N8 the last value size cut",
    ),
    pytest.param(
        "00000020010000020000000274310000018bcfe56800000000026b6bffffffff", MALFORMED_NULLS, id="U1 no headers size"
    ),
    pytest.param(
        "00000024010000020000000274310000018bcfe56800000000026b6bfffffffe00000000",
        MALFORMED_NULLS,
        id="U2 value size -2",
    ),
    pytest.param(
        "00000027010000020000000274310000018bcfe56800fffffffe0000000568656c6c6f00000000",
        MALFORMED_NULLS,
        id="U3 key size -2",
    ),
    pytest.param(
        "00000020010000000000000274310000018bcfe56800000000026b6bffffffff", MALFORMED_ANY, id="U4 null in version 0"
    ),
]


@pytest.mark.parametrize(("vector", "message"), GOOD)
def test_valid_vectors_are_parsed(vector: str, message: Message) -> None:
    assert parse_message(bytes.fromhex(vector)) == message


@pytest.mark.parametrize(("vector", "message"), GOOD)
def test_valid_vectors_are_encoded(vector: str, message: Message) -> None:
    assert encode_message(message) == bytes.fromhex(vector)


@pytest.mark.parametrize(("vector", "rejection"), BAD)
def test_invalid_vectors_are_rejected(vector: str, rejection: Rejection) -> None:
    assert parse_message(bytes.fromhex(vector)) == rejection


def test_the_older_formats_of_bruce_are_refused() -> None:
    format_0 = bytes.fromhex("00000019000000018bcfe568000274310000000568656c6c6f")
    assert parse_message(format_0) == Rejection(DiscardReason.UNSUPPORTED_API_KEY, 0)
    assert parse_message(b"t1 hello") == MALFORMED  # topic, space, body


def test_stream_messages_are_split_by_their_size() -> None:
    stream = bytes.fromhex("00000004" + A3 + P3)
    assert [parse_message(message) for message in split(stream)] == [
        MALFORMED,
        Message(b"x", b"", b"", 0, None),
        Message(b"x", b"v", b"k", 1, 0x80000000),
    ]


def test_the_vectors_match_the_protocol_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    missing = [case.id for case in GOOD if str(case.values[0]) not in page]
    assert missing == []


def split(stream: bytes) -> list[bytes]:
    messages = []
    while stream:
        size = int.from_bytes(stream[:4])
        messages.append(stream[:size])
        stream = stream[size:]
    return messages


def any_partition(
    *,
    api_key: int = 256,
    version: int = 0,
    flags: int = 0,
    topic: tuple[int, bytes] = (2, b"t1"),
    key: tuple[int, bytes] = (2, b"kk"),
    value: tuple[int, bytes] = (5, b"hello"),
    size: int | None = None,
) -> bytes:
    """A message with separate sizes and bytes, so that each length can be wrong."""
    extra = struct.pack(">i", 7) if api_key == 257 else b""
    body = struct.pack(">h", flags) + extra + struct.pack(">h", topic[0]) + topic[1] + struct.pack(">q", NOW)
    body += struct.pack(">i", key[0]) + key[1] + struct.pack(">i", value[0]) + value[1]
    return struct.pack(">ihh", 8 + len(body) if size is None else size, api_key, version) + body


@pytest.mark.parametrize(
    ("datagram", "rejection"),
    [
        (b"", MALFORMED),
        (any_partition(size=0), MALFORMED),
        (any_partition(size=-1), MALFORMED),
        (any_partition(size=-(2**31)), MALFORMED),
        (any_partition(api_key=255), Rejection(DiscardReason.UNSUPPORTED_API_KEY, 255)),
        (any_partition(api_key=300), Rejection(DiscardReason.UNSUPPORTED_API_KEY, 300)),
        (any_partition(api_key=-1), Rejection(DiscardReason.UNSUPPORTED_API_KEY, -1)),
        (any_partition(api_key=257, version=3), Rejection(DiscardReason.UNSUPPORTED_VERSION, 257, 3)),
        (any_partition(version=7), Rejection(DiscardReason.UNSUPPORTED_VERSION, 256, 7)),
        (any_partition(version=-1), Rejection(DiscardReason.UNSUPPORTED_VERSION, 256, -1)),
        (any_partition(flags=-1), MALFORMED_ANY),
        (any_partition(api_key=257, flags=1), MALFORMED_KEYED),
        (any_partition(topic=(-1, b"t1")), MALFORMED_ANY),
        (any_partition(topic=(30, b"t1")), MALFORMED_ANY),
        (any_partition(topic=(0, b"")), MALFORMED_ANY),
        (any_partition(key=(-1, b"kk")), MALFORMED_ANY),
        (any_partition(key=(12, b"kk")), MALFORMED_ANY),
        (any_partition(key=(2**31 - 1, b"kk")), MALFORMED_ANY),
        (any_partition(value=(-1, b"hello")), MALFORMED_ANY),
        (any_partition(value=(4, b"hello")), MALFORMED_ANY),
        (any_partition(value=(6, b"hello")), MALFORMED_ANY),
    ],
)
def test_each_malformed_message_has_its_reason(datagram: bytes, rejection: Rejection) -> None:
    assert parse_message(datagram) == rejection


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (any_partition(size=1, api_key=300), DiscardReason.MALFORMED),
        (any_partition(api_key=300, version=9, flags=1), DiscardReason.UNSUPPORTED_API_KEY),
        (any_partition(version=9, flags=1), DiscardReason.UNSUPPORTED_VERSION),
    ],
)
def test_the_first_fault_in_protocol_order_decides(datagram: bytes, reason: DiscardReason) -> None:
    rejection = parse_message(datagram)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is reason


@pytest.mark.parametrize("vector", [A2, P1])
def test_a_message_truncated_anywhere_is_malformed(vector: str) -> None:
    whole = bytes.fromhex(vector)
    for length in range(len(whole)):
        cut = length.to_bytes(4) + whole[4:length]
        rejection = parse_message(cut[:length])
        assert isinstance(rejection, Rejection)
        assert rejection.reason is DiscardReason.MALFORMED


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw a message; a key or value without bytes may be null or empty."""
    value, key = draw(st.binary(max_size=300) | st.just(b"")), draw(st.binary(max_size=50) | st.just(b""))
    empty = EmptyFields(0)
    if not value:
        empty |= draw(st.sampled_from([EmptyFields(0), EmptyFields.NULL_VALUE, EmptyFields.EMPTY_VALUE]))
    if not key and (value or empty):
        empty |= draw(st.sampled_from([EmptyFields(0), EmptyFields.EMPTY_KEY]))
    return Message(
        draw(st.binary(min_size=1, max_size=300)),
        value,
        key,
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.none() | st.integers(0, 2**32 - 1)),
        draw(header_lists),
        empty,
    )


@given(messages())
def test_an_encoded_message_parses_back(message: Message) -> None:
    assert parse_message(encode_message(message)) == message


@given(st.binary(max_size=80))
def test_parse_accepts_any_bytes_without_an_exception(junk: bytes) -> None:
    for api_key in (256, 257):
        framed = (8 + len(junk)).to_bytes(4) + api_key.to_bytes(2) + bytes(2) + junk
        assert isinstance(parse_message(framed), Message | Rejection)


def test_a_view_of_larger_items_is_encoded_by_its_bytes() -> None:
    numbers = memoryview(b"8 bytes.").cast("i")
    encoded = encode(b"t", numbers, numbers, None, timestamp_ms=1, headers=[("h", numbers)])
    assert encoded == encode(b"t", b"8 bytes.", b"8 bytes.", None, timestamp_ms=1, headers=[("h", b"8 bytes.")])


@given(messages(), st.data())
def test_all_buffer_types_parse_alike(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_message(message))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    assert parse_message(encoded) == parse_message(memoryview(encoded)) == parse_message(bytes(encoded))


def test_version_1_without_headers_parses() -> None:
    assert parse_message(bytes.fromhex(H2)) == Message(b"t1", b"hello", b"", NOW, None)


def test_only_messages_that_need_it_have_version_2() -> None:
    def version(value: bytes | None, key: bytes | None, *, keep_empty: bool) -> int:
        encoded = encode(b"t", value, key, timestamp_ms=NOW, keep_empty=keep_empty)
        return int.from_bytes(encoded[6:8])

    assert [version(value, key, keep_empty=False) for value in (b"", b"v") for key in (None, b"", b"k")] == [0] * 6
    assert [version(None, key, keep_empty=keep) for key in (None, b"", b"k") for keep in (False, True)] == [2] * 6
    assert [version(b"v", key, keep_empty=True) for key in (None, b"", b"k")] == [0, 2, 0]
    assert [version(b"", key, keep_empty=True) for key in (None, b"", b"k")] == [2] * 3


def test_the_key_of_a_tombstone_is_null_by_default() -> None:
    for key in (None, b""):
        parsed = parse_message(encode(b"t", None, key, timestamp_ms=NOW))
        assert isinstance(parsed, Message)
        assert parsed.empty == EmptyFields.NULL_VALUE


def test_headers_have_an_exact_size_limit() -> None:
    message = Message(b"t", b"v", b"", NOW, None, ((b"k", bytes(65528)),))
    data = encode_message(message)
    assert parse_message(data) == message
    headers = (1).to_bytes(2) + b"k" + (65529).to_bytes(4) + bytes(65529)
    longer = data[4:-65539] + len(headers).to_bytes(4) + headers
    assert parse_message((len(longer) + 4).to_bytes(4) + longer) == MALFORMED_HEADERS
    with pytest.raises(LocalProtocolError, match="65535"):
        encode(b"t", b"v", timestamp_ms=NOW, headers=[(b"k", bytes(65529))])
    with pytest.raises(LocalProtocolError, match="32767"):
        encode(b"t", b"v", timestamp_ms=NOW, headers=[(bytes(32768), None)])


def test_headers_may_be_text() -> None:
    data = encode(b"t", b"v", timestamp_ms=NOW, headers=[("größe", "ß"), (b"n", None)])
    message = parse_message(data)
    assert isinstance(message, Message)
    assert message.headers == (("größe".encode(), "ß".encode()), (b"n", None))


def test_the_longest_topic_fits() -> None:
    message = Message(b"t" * 32767, b"v", b"", NOW, None)
    assert parse_message(encode_message(message)) == message


def test_a_topic_that_is_text_is_sent_as_utf_8() -> None:
    parsed = parse_message(encode("größe", b"v", timestamp_ms=NOW))
    assert isinstance(parsed, Message)
    assert parsed.topic == "größe".encode()


def test_signed_and_unsigned_partition_keys_are_the_same_bits() -> None:
    unsigned = encode("t", b"", partition_key=2**32 - 1, timestamp_ms=0)
    assert encode("t", b"", partition_key=-1, timestamp_ms=0) == unsigned


class HugeBytes(bytes):
    """A buffer that claims a size too large to allocate in a test."""

    def __len__(self) -> int:
        return MAX_MESSAGE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": b""}, "empty"),
        ({"topic": b"t" * 32768}, "32768 bytes"),
        ({"topic": "é" * 16384}, "32768 bytes"),
        ({"timestamp_ms": 2**63}, "Timestamp 9223372036854775808"),
        ({"value": HugeBytes()}, "at most 2147483647"),
        ({"key": HugeBytes(), "value": HugeBytes()}, "at most 2147483647"),
        ({"partition_key": 2**32}, "Partition key 4294967296"),
        ({"partition_key": -(2**31) - 1}, "Partition key -2147483649"),
    ],
)
def test_a_message_that_exceeds_the_format_is_refused(arguments: dict[str, object], words: str) -> None:
    fitting: dict[str, object] = {"partition_key": 1, "topic": b"t", "value": b"v", "timestamp_ms": NOW}
    with pytest.raises(LocalProtocolError, match=words):
        encode(**(fitting | arguments))  # type: ignore[arg-type]
