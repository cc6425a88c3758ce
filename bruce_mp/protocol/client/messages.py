"""Encode and parse the messages that clients send to the daemon, one message at a time.

    int32 Size | int16 ApiKey | int16 ApiVersion | int16 Flags | [int32 PartitionKey] | int16 TopicSize | Topic
    | int64 Timestamp | int32 KeySize | Key | int32 ValueSize | Value | [int32 HeadersSize | Headers]

All integers are big-endian and signed, except that the daemon reads PartitionKey as unsigned.  Size counts the whole
message, itself included.  Of the two kinds of messages, AnyPartition (ApiKey 256) and PartitionKey (ApiKey 257), only
the latter has the field PartitionKey.  ApiVersion 1 adds record headers (`record_headers`).  In ApiVersion 2, a KeySize
or ValueSize of -1 means null, and 0 means empty.  `docs/protocol.md` describes the formats for programmers of clients.

Clients encode messages with this module.  The daemon parses received messages with its kernels, and tests compare the
kernels with `parse_message()`.  The daemon itself uses `parse_message()` only for reports and exports.  The order of
the checks in `parse_message()` is part of the protocol, because the first failed check decides the discard reason.
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
    as_bytes,
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
"""Maximum size of a topic name in bytes."""
MAX_MESSAGE: Final = 2**31 - 1
"""Maximum size of a whole message in bytes."""


@unique
class ApiKey(IntEnum):
    """The kind of a message."""

    ANY_PARTITION = 256
    """The daemon chooses the partition."""
    PARTITION_KEY = 257
    """The client's 32-bit key, modulo the number of partitions, chooses the partition."""


class EmptyFields(IntFlag):
    """Flags that tell if a key or value without bytes is null or empty; messages before `NULLS_VERSION` have none.

    A key without bytes is null unless EMPTY_KEY is set. If neither NULL_VALUE nor EMPTY_VALUE is set, the daemon's
    configuration decides if a value without bytes is null. The slab stores the flags as bits of a record's options.
    """

    EMPTY_KEY = 4
    NULL_VALUE = 8
    EMPTY_VALUE = 16


NO_EMPTY_FIELDS: Final = EmptyFields(0)


@dataclass(frozen=True, slots=True)
class Message:
    """A valid message.  `partition_key` is unsigned, or None in an AnyPartition message."""

    topic: bytes
    value: bytes
    key: bytes
    timestamp_ms: int
    partition_key: int | None
    headers: tuple[Header, ...] = ()
    empty: EmptyFields = NO_EMPTY_FIELDS
    """The flags of `key` and `value`, in which b"" stands both for empty and for null."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason to reject bytes that are not a valid message.

    The fields are checked in the order Size, ApiKey, ApiVersion. `api_key` is None if Size is wrong; `api_version` is
    None if Size or ApiKey is wrong.
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

    The message has the lowest version that can express it.  A `str` topic is encoded as UTF-8.  A key or value of None
    is null.  If `keep_empty` is True, an empty key or value stays empty in Kafka; otherwise an empty key becomes null,
    and the daemon's configuration decides if an empty value becomes null.  A partition key has 32 bits, signed or not.

    Raises `LocalProtocolError` if the topic is empty, or if partition key, topic, timestamp, headers or the whole
    message do not fit in their fields.
    """
    if partition_key is not None and not -(2**31) <= partition_key < 2**32:
        raise LocalProtocolError(
            f"Partition key {partition_key} does not fit: give one from -2147483648 to 4294967295."
        )
    name, body = _encode_topic(topic), _Body.create(value, key, headers, keep_empty=keep_empty)
    if partition_key is None:
        size = _checked_size(ANY_PARTITION_START, name, body)
        start = ANY_PARTITION_START.pack(size, ApiKey.ANY_PARTITION, body.version, NO_FLAGS, len(name))
    else:
        size, unsigned_key = _checked_size(PARTITION_KEY_START, name, body), partition_key & 0xFFFFFFFF
        start = PARTITION_KEY_START.pack(size, ApiKey.PARTITION_KEY, body.version, NO_FLAGS, unsigned_key, len(name))
    return start + _encode_from_topic(name, timestamp_ms, body)


def encode_message(message: Message) -> bytes:
    """Encode a `Message`; `parse_message` returns an equal message for the result."""
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
    """Key, value and headers of a message as fields of the lowest version that can express them."""

    version: int
    key_size: int
    key: Buffer
    value_size: int
    value: Buffer
    headers: bytes
    """HeadersSize and Headers, encoded; empty in version 0."""

    @classmethod
    def create(
        cls, value: Buffer | None, key: Buffer | None, headers: Sequence[HeaderInput], *, keep_empty: bool
    ) -> _Body:
        encoded = encode_headers(headers)
        key, value = as_bytes(key), as_bytes(value)
        key_bytes, value_bytes = key or b"", value or b""
        keeps_empty_key = keep_empty and key is not None and not key
        keeps_empty_value = keep_empty and value is not None and not value
        if value is None or keeps_empty_key or keeps_empty_value:
            key_size = len(key_bytes) or (0 if keeps_empty_key else NULL)
            value_size = NULL if value is None else len(value)
            encoded_with_size = INT32.pack(len(encoded)) + encoded
            return cls(NULLS_VERSION, key_size, key_bytes, value_size, value_bytes, encoded_with_size)
        if encoded:
            encoded_with_size = INT32.pack(len(encoded)) + encoded
            return cls(HEADERS_VERSION, len(key_bytes), key_bytes, len(value), value_bytes, encoded_with_size)
        return cls(PLAIN_VERSION, len(key_bytes), key_bytes, len(value), value_bytes, b"")


def _encode_topic(topic: bytes | str) -> bytes:
    name = topic.encode() if isinstance(topic, str) else topic
    if not name:
        raise LocalProtocolError("The topic is empty: name one.")
    if len(name) > MAX_TOPIC:
        raise LocalProtocolError(f"The topic has {len(name)} bytes: at most {MAX_TOPIC} fit.")
    return name


def _checked_size(start: Struct, name: bytes, body: _Body) -> int:
    """Return the size of a message with the first fields `start`; raise LocalProtocolError if the size is too large."""
    body_size = len(body.key) + len(body.value) + len(body.headers)
    size = start.size + len(name) + INT64.size + 2 * INT32.size + body_size
    if size > MAX_MESSAGE:
        raise LocalProtocolError(f"The message has {size} bytes: at most {MAX_MESSAGE} fit.")
    return size


def _encode_from_topic(name: bytes, timestamp_ms: int, body: _Body) -> bytes:
    """Encode the fields from the topic's name to the end of the message."""
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
    """Reader of a message's fields, in order; it raises _MalformedError if the bytes end too early."""

    def __init__(self, view: memoryview) -> None:
        self._unread = view

    def read(self, size: int) -> bytes:
        if not 0 <= size <= len(self._unread):
            raise _MalformedError
        field, self._unread = bytes(self._unread[:size]), self._unread[size:]
        return field

    def read_integer(self, layout: Struct) -> int:
        (value,) = layout.unpack(self.read(layout.size))
        return int(value)

    def expect_end(self) -> None:
        if self._unread:
            raise _MalformedError


def parse_message(buffer: Buffer) -> Message | Rejection:
    """Parse one whole message: a datagram, or as many bytes of a stream as the field Size tells."""
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
    """Parse the fields from Flags to the end of the message."""
    if body.read_integer(INT16) != NO_FLAGS:
        raise _MalformedError
    partition_key = body.read_integer(UINT32) if api_key is ApiKey.PARTITION_KEY else None
    topic = body.read(body.read_integer(INT16))
    if not topic:
        raise _MalformedError
    timestamp_ms = body.read_integer(INT64)
    may_be_null = api_version == NULLS_VERSION
    key, empty_key = _parse_field(body, _KEY_FLAGS, may_be_null=may_be_null)
    value, empty_value = _parse_field(body, _VALUE_FLAGS, may_be_null=may_be_null)
    headers = () if api_version == PLAIN_VERSION else _parse_headers(body)
    body.expect_end()
    return Message(topic, value, key, timestamp_ms, partition_key, headers, empty_key | empty_value)


# The flag of a null field, then the flag of an empty field. A null key needs no flag.
_KEY_FLAGS: Final = (NO_EMPTY_FIELDS, EmptyFields.EMPTY_KEY)
_VALUE_FLAGS: Final = (EmptyFields.NULL_VALUE, EmptyFields.EMPTY_VALUE)


def _parse_field(
    body: _Reader, null_and_empty_flags: tuple[EmptyFields, EmptyFields], *, may_be_null: bool
) -> tuple[bytes, EmptyFields]:
    """Parse a key or value. Return the bytes, and the flag that tells if a field without bytes is null or empty."""
    size = body.read_integer(INT32)
    if not may_be_null or size > 0:
        return body.read(size), NO_EMPTY_FIELDS
    if size < NULL:
        raise _MalformedError
    null_flag, empty_flag = null_and_empty_flags
    return b"", null_flag if size == NULL else empty_flag


def _parse_headers(body: _Reader) -> tuple[Header, ...]:
    size = body.read_integer(INT32)
    headers = decode_headers(body.read(size)) if size <= MAX_HEADERS_BYTES else None
    if headers is None:
        raise _MalformedError
    return headers
