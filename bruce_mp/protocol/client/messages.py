"""The messages of local clients, AnyPartition and PartitionKey, built and parsed one at a time.

    int32 Size | int16 ApiKey | int16 ApiVersion | int16 Flags | [int32 PartitionKey] | int16 TopicSize | Topic
    | int64 Timestamp | int32 KeySize | Key | int32 ValueSize | Value | [int32 HeadersSize | Headers]

All integers are big-endian and signed, but the daemon reads PartitionKey as unsigned; Size counts the whole message,
itself included; only ApiKey 257 has PartitionKey.  ApiVersion 1 adds record headers (`record_headers`).  In ApiVersion
2 KeySize and ValueSize may be -1, for null, and 0 means empty.  `docs/protocol.md` describes the formats for
programmers of clients.

Clients encode with this module.  The daemon parses with it only messages for reports and exports: the kernels parse
whole batches, and tests compare them with `parse_message()`.  The order of the checks decides the discard reason of a
message with several faults, so it is part of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag, unique
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason, LocalProtocolError
from bruce_mp.protocol.client.record_headers import (
    MAX_HEADERS_BYTES,
    Buffer,
    Header,
    HeaderInput,
    decode_headers,
    encode_headers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_MESSAGE",
    "MAX_TOPIC",
    "ApiKey",
    "EmptyFields",
    "Message",
    "Rejection",
    "encode",
    "encode_message",
    "parse_message",
]

FRAME_START: Final = Struct(">ihh")
"""Size, ApiKey, ApiVersion"""
ANY_PARTITION_START: Final = Struct(">ihhhh")
"""Size, ApiKey, ApiVersion, Flags, TopicSize"""
PARTITION_KEY_START: Final = Struct(">ihhhIh")
"""Size, ApiKey, ApiVersion, Flags, PartitionKey, TopicSize"""
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
UINT32: Final = Struct(">I")
INT64: Final = Struct(">q")

PLAIN_VERSION: Final = 0
HEADERS_VERSION: Final = 1
NULLS_VERSION: Final = 2
NULL: Final = -1
NO_FLAGS: Final = 0
MAX_TOPIC: Final = 2**15 - 1
MAX_MESSAGE: Final = 2**31 - 1


@unique
class ApiKey(IntEnum):
    """The kind of a message."""

    ANY_PARTITION = 256
    """The daemon chooses the partition."""
    PARTITION_KEY = 257
    """The client's 32-bit key, modulo the number of partitions, chooses the partition."""


class EmptyFields(IntFlag):
    """The meaning of a key or value without bytes, as a message of `NULLS_VERSION` gives it.

    Without a flag the key is null, and the daemon's configuration decides about the value. The flags are bits of the
    options that the slab stores with a record.
    """

    EMPTY_KEY = 4
    NULL_VALUE = 8
    EMPTY_VALUE = 16


NO_EMPTY_FIELDS: Final = EmptyFields(0)


@dataclass(frozen=True, slots=True)
class Message:
    """A valid message.  `partition_key` is unsigned; `None` in an AnyPartition message."""

    topic: bytes
    value: bytes
    key: bytes
    timestamp_ms: int
    partition_key: int | None
    headers: tuple[Header, ...] = ()
    empty: EmptyFields = NO_EMPTY_FIELDS
    """Tells an empty key or value from a null one; both are `b""` in `key` and `value`."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason to reject bytes that are not a valid message.

    The checks go from Size to ApiKey to ApiVersion; a field after the one that failed is None.
    """

    reason: DiscardReason
    api_key: int | None = None
    api_version: int | None = None


# --- building --------------------------------------------------------------------------------------------------------


def encode(
    topic: bytes | str,
    value: Buffer | None,
    key: Buffer | None = None,
    partition_key: int | None = None,
    *,
    timestamp_ms: int,
    headers: Sequence[HeaderInput] = (),
    keep_empty: bool = False,
) -> bytes:
    """Encode a PartitionKey message, or an AnyPartition message if `partition_key` is None.

    The message has the lowest version that can express it.  A `str` topic becomes UTF-8.  The value None is null.  With
    `keep_empty` an empty key or value reaches Kafka as empty; otherwise an empty key becomes null, and the daemon's
    configuration decides about an empty value.  A partition key has 32 bits, signed or unsigned.

    Raises `LocalProtocolError` for an empty topic, and if partition key, topic, timestamp, headers or the whole do not
    fit.
    """
    if partition_key is not None and not -(2**31) <= partition_key < 2**32:
        raise LocalProtocolError(
            f"Partition key {partition_key} does not fit: give one from -2147483648 to 4294967295."
        )
    name, body = _encode_topic(topic), _Body.of(value, key, headers, keep_empty=keep_empty)
    if partition_key is None:
        size = _checked_size(ANY_PARTITION_START, name, body)
        start = ANY_PARTITION_START.pack(size, ApiKey.ANY_PARTITION, body.version, NO_FLAGS, len(name))
    else:
        size, bits = _checked_size(PARTITION_KEY_START, name, body), partition_key & 0xFFFFFFFF
        start = PARTITION_KEY_START.pack(size, ApiKey.PARTITION_KEY, body.version, NO_FLAGS, bits, len(name))
    return start + _encode_from_topic(name, timestamp_ms, body)


def encode_message(message: Message) -> bytes:
    """Encode a message that was parsed."""
    empty = message.empty
    value = None if EmptyFields.NULL_VALUE in empty else message.value
    key = message.key if message.key or EmptyFields.EMPTY_KEY in empty else None
    keep_empty = bool(empty & (EmptyFields.EMPTY_KEY | EmptyFields.EMPTY_VALUE))
    return encode(
        message.topic,
        value,
        key,
        message.partition_key,
        timestamp_ms=message.timestamp_ms,
        headers=message.headers,
        keep_empty=keep_empty,
    )


class _Body(NamedTuple):
    """Key, value and headers of a message, in the lowest version that can express them."""

    version: int
    key_size: int
    key: Buffer
    value_size: int
    value: Buffer
    headers: bytes
    """HeadersSize and Headers, encoded; empty in version 0."""

    @classmethod
    def of(cls, value: Buffer | None, key: Buffer | None, headers: Sequence[HeaderInput], *, keep_empty: bool) -> _Body:
        encoded = encode_headers(headers)
        key, value = _as_bytes(key), _as_bytes(value)
        key_bytes, value_bytes = key or b"", value or b""
        keeps_empty_key = keep_empty and key is not None and not key
        keeps_empty_value = keep_empty and value is not None and not value
        if value is None or keeps_empty_key or keeps_empty_value:
            key_size = len(key_bytes) or (0 if keeps_empty_key else NULL)
            value_size = NULL if value is None else len(value)
            return cls(NULLS_VERSION, key_size, key_bytes, value_size, value_bytes, INT32.pack(len(encoded)) + encoded)
        if encoded:
            with_size = INT32.pack(len(encoded)) + encoded
            return cls(HEADERS_VERSION, len(key_bytes), key_bytes, len(value), value_bytes, with_size)
        return cls(PLAIN_VERSION, len(key_bytes), key_bytes, len(value), value_bytes, b"")


def _as_bytes(field: Buffer | None) -> Buffer | None:
    """Return a buffer whose `len` is its number of bytes; the `len` of a memoryview may count larger items."""
    return bytes(field) if isinstance(field, memoryview) and len(field) != field.nbytes else field


def _encode_topic(topic: bytes | str) -> bytes:
    name = topic.encode() if isinstance(topic, str) else topic
    if not name:
        raise LocalProtocolError("The topic is empty: name one.")
    if len(name) > MAX_TOPIC:
        raise LocalProtocolError(f"The topic has {len(name)} bytes: at most {MAX_TOPIC} fit.")
    return name


def _checked_size(start: Struct, name: bytes, body: _Body) -> int:
    body_size = len(body.key) + len(body.value) + len(body.headers)
    size = start.size + len(name) + INT64.size + 2 * INT32.size + body_size
    if size > MAX_MESSAGE:
        raise LocalProtocolError(f"The message has {size} bytes: at most {MAX_MESSAGE} fit.")
    return size


def _encode_from_topic(name: bytes, timestamp_ms: int, body: _Body) -> bytes:
    if not -(2**63) <= timestamp_ms < 2**63:
        raise LocalProtocolError(f"Timestamp {timestamp_ms} does not fit: it is milliseconds in 64 bits.")
    try:
        key, value = (INT32.pack(body.key_size), body.key), (INT32.pack(body.value_size), body.value)
        return b"".join((name, INT64.pack(timestamp_ms), *key, *value, body.headers))
    except TypeError:
        raise TypeError("Key and value are bytes, not text: encode them, as in value.encode().") from None


# --- parsing ---------------------------------------------------------------------------------------------------------


class _MalformedError(Exception):
    """The bytes end too early, or a field has an invalid value."""


class _Reader:
    """Reads fields from the front of a message's body."""

    def __init__(self, view: memoryview) -> None:
        self._left = view

    def read(self, size: int) -> bytes:
        if not 0 <= size <= len(self._left):
            raise _MalformedError
        field, self._left = bytes(self._left[:size]), self._left[size:]
        return field

    def integer(self, layout: Struct) -> int:
        (value,) = layout.unpack(self.read(layout.size))
        return int(value)

    def expect_end(self) -> None:
        if self._left:
            raise _MalformedError


def parse_message(buffer: Buffer) -> Message | Rejection:
    """Parse one whole message: a datagram, or the bytes of a stream that its Size covers."""
    view = memoryview(buffer)
    if len(view) < FRAME_START.size:
        return Rejection(DiscardReason.MALFORMED)
    size, api_key, api_version = FRAME_START.unpack_from(view)
    if size != len(view):
        return Rejection(DiscardReason.MALFORMED)
    if api_key not in ApiKey.__members__.values():
        return Rejection(DiscardReason.UNSUPPORTED_API_KEY, api_key)
    if api_version not in {PLAIN_VERSION, HEADERS_VERSION, NULLS_VERSION}:
        return Rejection(DiscardReason.UNSUPPORTED_VERSION, api_key, api_version)
    try:
        return _parse_body(_Reader(view[FRAME_START.size :]), ApiKey(api_key), api_version)
    except _MalformedError:
        return Rejection(DiscardReason.MALFORMED, api_key, api_version)


def _parse_body(body: _Reader, api_key: ApiKey, api_version: int) -> Message:
    if body.integer(INT16) != NO_FLAGS:
        raise _MalformedError
    partition_key = body.integer(UINT32) if api_key is ApiKey.PARTITION_KEY else None
    topic = body.read(body.integer(INT16))
    if not topic:
        raise _MalformedError
    timestamp_ms = body.integer(INT64)
    may_be_null = api_version == NULLS_VERSION
    key, empty_key = _parse_field(body, _KEY_FLAGS, may_be_null=may_be_null)
    value, empty_value = _parse_field(body, _VALUE_FLAGS, may_be_null=may_be_null)
    headers = () if api_version == PLAIN_VERSION else _parse_headers(body)
    body.expect_end()
    return Message(topic, value, key, timestamp_ms, partition_key, headers, empty_key | empty_value)


_KEY_FLAGS: Final = (NO_EMPTY_FIELDS, EmptyFields.EMPTY_KEY)
_VALUE_FLAGS: Final = (EmptyFields.NULL_VALUE, EmptyFields.EMPTY_VALUE)
"""Flags for a null and for an empty field, in this order; a null key needs no flag."""


def _parse_field(
    body: _Reader, null_and_empty: tuple[EmptyFields, EmptyFields], *, may_be_null: bool
) -> tuple[bytes, EmptyFields]:
    """Return the bytes of a key or value, and its flag."""
    size = body.integer(INT32)
    if not may_be_null or size > 0:
        return body.read(size), NO_EMPTY_FIELDS
    if size < NULL:
        raise _MalformedError
    for_null, for_empty = null_and_empty
    return b"", for_null if size == NULL else for_empty


def _parse_headers(body: _Reader) -> tuple[Header, ...]:
    size = body.integer(INT32)
    headers = decode_headers(body.read(size)) if size <= MAX_HEADERS_BYTES else None
    if headers is None:
        raise _MalformedError
    return headers
