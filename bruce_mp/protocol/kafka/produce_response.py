"""Decode produce responses, versions 0 to 12.

A response may cover hundreds of partitions, and most of them have no error.  For speed, the decoder reads a partition
without an error with one struct; it reads other partitions field by field.

The layout, with the fields in wire order:

    +5  only in versions 5 and later
    ?   may be null
    *   only in versions 9 and later

    header          correlation id i32, tags*
    response        topics, throttle time ms i32 +1, tags* (0: node endpoints +10)
    topic           name, partitions, tags*
    partition       index i32, error i16, base offset i64, log append time ms i64 +2, log start offset i64 +5,
                    record errors +8, error message? +8, tags* (0: current leader +10)
    record error    index in the batch i32, message?, tags*
    current leader  node i32, epoch i32, tags
    node endpoint   node i32, host, port i32, rack?, tags
    tags            count, and for each its number and its length, as unsigned varints, then the bytes

Versions 9 and later encode the length n of a string or an array as the unsigned varint n + 1, and null as 0.
A tag is an optional field at the end of a structure: "tags* (0: current leader +10)" means that the tag with the number
0 has the current leader, in versions 10 and later.  Unknown tags are skipped.
Source: ProduceResponse.json and ResponseHeader.json of Apache Kafka, KIP-482.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.kafka_types import NO_BROKER, PartitionAck, ProduceResponse, broker_address
from bruce_mp.protocol.kafka.produce_request import FIRST_FLEXIBLE_VERSION

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.kafka_types import BrokerAddress

__all__ = ["decode_produce"]

FIRST_VERSION_WITH_THROTTLING: Final = 1
CORRELATION_ID_BYTES: Final = 4
MAX_UVARINT_BYTES: Final = 5  # a varint has 7 bits of the number in each byte, and a number has up to 32 bits
I16: Final = Struct(">h")
I32: Final = Struct(">i")
LEADER: Final = Struct(">ii")
"""The current leader: node, epoch."""
# The tag numbers of the current leader (in a partition) and of the node endpoints (in the response).
LEADER_TAG: Final = 0
ENDPOINTS_TAG: Final = 0


class _PartitionLayout(NamedTuple):
    """The layout of a partition in a range of versions."""

    head: Struct
    """The first fields: index, error, base offset and, in versions 2 and later, log append time."""
    end_without_errors: bytes
    """The bytes after `head` if the partition has no record errors, no error message and no tags."""


OLDEST: Final = _PartitionLayout(Struct(">ihq"), b"")
WITH_TIME: Final = _PartitionLayout(Struct(">ihqq"), b"")
WITH_START: Final = _PartitionLayout(Struct(">ihqq8x"), b"")  # 8x: the log start offset
WITH_ERRORS: Final = _PartitionLayout(Struct(">ihqq8x"), b"\0\0\0\0\xff\xff")  # no record errors, null message
FLEXIBLE: Final = _PartitionLayout(Struct(">ihqq8x"), b"\1\0\0")  # no record errors, null message, no tags
PARTITION_LAYOUTS: Final = (*[OLDEST] * 2, *[WITH_TIME] * 3, *[WITH_START] * 3, WITH_ERRORS, *[FLEXIBLE] * 4)
"""The layout of each version, from 0 to 12."""


def decode_produce(frame: bytes, version: int) -> ProduceResponse:
    """Decode a frame, given without its size; raise RemoteProtocolError for malformed bytes.

    The acks are in the order of the response.  Bytes after the response are ignored.
    """
    reader = _FlexibleReader(frame) if version >= FIRST_FLEXIBLE_VERSION else _ResponseReader(frame)
    try:
        return _read_response(reader, version)
    except (struct.error, LookupError, UnicodeDecodeError) as failure:
        raise RemoteProtocolError(
            f"The broker's Produce response does not follow the protocol: {failure} (read up to byte "
            f"{reader.at} of {len(frame)})."
        ) from failure


class _ResponseReader:
    """Reader of the fields of versions before 9, in order; `at` is the index of the next byte.

    A read beyond the end raises struct.error or LookupError.
    """

    has_tags = False

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def read_number(self, layout: Struct) -> int:
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return int(value)

    def read_count(self) -> int:
        """Read the length of an array; it is -1 for null, which callers treat as an empty array."""
        return self.read_number(I32)

    def read_text_length(self) -> int:
        """Read the length of a string; it is -1 for null."""
        return self.read_number(I16)

    def read_topic_head(self) -> tuple[bytes, int]:
        """Read the name of a topic and the number of its partitions."""
        data, start = self.data, self.at + I16.size
        (size,) = I16.unpack_from(data, self.at)
        end = start + size
        if end < start:
            raise LookupError(f"a topic's name has {size} bytes")
        (partition_count,) = I32.unpack_from(data, end)
        self.at = end + I32.size
        return data[start:end], partition_count

    def read_bytes(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if not start <= self.at <= len(self.data):
            raise LookupError(f"a field of {size} bytes exceeds the frame")
        return self.data[start : self.at]

    def read_text(self) -> str | None:
        size = self.read_text_length()
        return None if size < 0 else self.read_bytes(size).decode()

    def read_tags(self) -> dict[int, bytes]:
        """Read the tags at the end of a structure; return their contents by number.  Versions before 9 have no tags."""
        return {}


class _FlexibleReader(_ResponseReader):
    """Reader of the fields of the flexible versions, 9 and later (KIP-482)."""

    has_tags = True

    def read_uvarint(self) -> int:
        first = self.data[self.at]
        if first < 0x80:  # the common case: the number has one byte
            self.at += 1
            return first
        value = 0
        for index, byte in enumerate(self.data[self.at : self.at + MAX_UVARINT_BYTES]):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self.at += index + 1
                return value
        raise LookupError("an unsigned varint does not end")

    def read_topic_head(self) -> tuple[bytes, int]:
        # The usual case, for speed: a varint of one byte (below 0x80) is the size of the name + 1, and another one
        # after the name is the number of partitions + 1.
        data, start = self.data, self.at + 1
        end = self.at + data[self.at]
        if start <= end < len(data) and data[self.at] < 0x80 and data[end] < 0x80:
            self.at = end + 1
            return data[start:end], data[end] - 1
        return self.read_bytes(self.read_uvarint() - 1), self.read_uvarint() - 1

    def read_count(self) -> int:
        return self.read_uvarint() - 1

    def read_text_length(self) -> int:
        return self.read_uvarint() - 1

    def read_tags(self) -> dict[int, bytes]:
        if self.data[self.at] == 0:  # the common case: no tags
            self.at += 1
            return {}
        count = self.read_uvarint()
        return {self.read_uvarint(): self.read_bytes(self.read_uvarint()) for _ in range(count)}


def _read_response(reader: _ResponseReader, version: int) -> ProduceResponse:
    reader.at += CORRELATION_ID_BYTES
    reader.read_tags()  # the tags of the header
    acks = _read_topics(reader, PARTITION_LAYOUTS[version])
    throttle_ms = reader.read_number(I32) if version >= FIRST_VERSION_WITH_THROTTLING else 0
    endpoints = reader.read_tags().get(ENDPOINTS_TAG)
    return ProduceResponse(tuple(acks), throttle_ms, {} if endpoints is None else _decode_endpoints(endpoints))


def _read_topics(reader: _ResponseReader, layout: _PartitionLayout) -> list[PartitionAck]:
    """Return the acks of all topics, with few calls, because there may be hundreds of topics with one partition."""
    (head, end_without_errors), data = layout, reader.data
    head_size, end_size = head.size, len(end_without_errors)
    acks: list[PartitionAck] = []
    for _ in range(reader.read_count()):
        topic, partition_count = reader.read_topic_head()
        for _ in range(partition_count):
            ack = PartitionAck(topic, *head.unpack_from(data, reader.at))
            reader.at += head_size
            if data.startswith(end_without_errors, reader.at):
                reader.at += end_size
            else:
                ack = _read_errors(ack, reader)
            acks.append(ack)
        if reader.has_tags:
            reader.read_tags()
    return acks


def _read_errors(ack: PartitionAck, reader: _ResponseReader) -> PartitionAck:
    """Read the fields after `head`, and return the ack with record errors, error message and current leader."""
    errors = tuple([_read_record_error(reader) for _ in range(reader.read_count())])
    message = reader.read_text()
    leader = reader.read_tags().get(LEADER_TAG)
    node, epoch = (NO_BROKER, -1) if leader is None else LEADER.unpack_from(leader)
    return replace(ack, record_errors=errors, error_message=message, leader=node, leader_epoch=epoch)


def _read_record_error(reader: _ResponseReader) -> tuple[int, str | None]:
    index, message = reader.read_number(I32), reader.read_text()
    reader.read_tags()
    return index, message


def _decode_endpoints(data: bytes) -> dict[int, BrokerAddress]:
    reader = _FlexibleReader(data)
    return dict([_read_endpoint(reader) for _ in range(reader.read_count())])


def _read_endpoint(reader: _ResponseReader) -> tuple[int, BrokerAddress]:
    node, host, port, rack = reader.read_number(I32), reader.read_text(), reader.read_number(I32), reader.read_text()
    reader.read_tags()
    return node, broker_address(node, host, port, rack)
