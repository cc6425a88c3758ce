"""Encode the produce request, versions 0 to 12, as a list of buffers for one vectored send.

A large record batch is not copied into the request: it is a separate buffer, and this module encodes the bytes
between the batches.  A small batch is copied, because a separate buffer costs more than the copy.

The layout, with the fields in wire order (+: only in versions 3 and later; *: only in versions 9 and later, which also
encode the length n of a string, an array or records as the unsigned varint n + 1):

    header    size i32, api key i16, version i16, correlation id i32, client id (always with an i16 length), tags*
    request   transactional id+ (null), acks i16, timeout ms i32, topics
    topic     name, partitions, tags*
    partition index i32, records (with an i32 length), tags*

The field `records` contains a message set in versions 0 to 2, and a record batch in later versions.  Version 13, which
names topics by id, is not used.  Source: ProduceRequest.json and RequestHeader.json of Apache Kafka.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.kafka_types import EncodedTopics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.protocol.kafka.kafka_types import PartitionData

__all__ = [
    "FIRST_VERSION",
    "FIRST_VERSION_WITH_BATCHES",
    "FIRST_VERSION_WITH_TIMESTAMPS",
    "LAST_VERSION",
    "encode_produce",
    "encode_topics",
]

FIRST_VERSION: Final = 0
FIRST_VERSION_WITH_TIMESTAMPS: Final = 2
"""The first version with message format 1, which has timestamps (Kafka 0.10)."""
FIRST_VERSION_WITH_BATCHES: Final = 3
"""The first version with record batches (Kafka 0.11); Kafka 4 closes the connection if an older version comes."""
LAST_VERSION: Final = 12
FIRST_FLEXIBLE_VERSION: Final = 9
"""The first version with tags and varint lengths (KIP-482)."""
API_KEY: Final = 0
HEADER: Final = Struct(">hhih")  # api key, version, correlation id, length of the client id
ACKS_AND_TIMEOUT: Final = Struct(">hi")
I16: Final = Struct(">h")
I32: Final = Struct(">i")
NO_TAGS: Final = b"\0"
COPIED_BYTES: Final = 4096
"""Records of at most this size are copied; a separate buffer costs as much CPU as a copy of this size."""
VALID_ACKS: Final = (-1, 0, 1)


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Layout(NamedTuple):
    """The encoding in a range of versions: some constant bytes, and the functions that encode lengths."""

    null_transactional_id: bytes
    encode_string_length: Callable[[int], bytes]
    encode_array_length: Callable[[int], bytes]
    encode_records_length: Callable[[int], bytes]
    tags: bytes
    """The bytes at the end of each structure."""


def _compact_length(length: int) -> bytes:
    """Encode a length for the flexible versions, in which 0 means null."""
    return _uvarint(length + 1)


# The layouts of versions 0 to 2, 3 to 8, and 9 to 12.
OLDEST: Final = _Layout(b"", I16.pack, I32.pack, I32.pack, b"")
CLASSIC: Final = OLDEST._replace(null_transactional_id=I16.pack(-1))
FLEXIBLE: Final = _Layout(b"\0", _compact_length, _compact_length, _compact_length, NO_TAGS)


def _layout_of(version: int) -> _Layout:
    if version >= FIRST_FLEXIBLE_VERSION:
        return FLEXIBLE
    return CLASSIC if version >= FIRST_VERSION_WITH_BATCHES else OLDEST


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str,
    data: Sequence[PartitionData] | EncodedTopics,
    *,
    acks: int,
    timeout_ms: int,
) -> list[bytes]:
    """Return a whole frame as a list of buffers to write in order; large `records` are not copied.

    `acks` is -1 (from all in-sync replicas), 1 (from the leader) or 0 (none); `timeout_ms` is the longest time that the
    broker may wait for its replicas.  The list has at most 1 + 2 * partitions buffers; the caller must not pass more of
    them to one send than the system allows (IOV_MAX, 1024 on Linux).  Raises LocalProtocolError if a number is out of
    range, or if a partition occurs twice.
    """
    _check_version_and_acks(version, acks)
    topics = data.buffers if isinstance(data, EncodedTopics) else encode_topics(version, data)
    try:
        head = _encode_head(version, correlation_id, client_id, acks, timeout_ms)
        size = I32.pack(len(head) + sum(map(len, topics)))
    except struct.error as failure:
        raise LocalProtocolError(f"A number in a produce request does not fit its field: {failure}.") from failure
    return [b"".join((size, head, topics[0])), *topics[1:]]


def encode_topics(version: int, data: Sequence[PartitionData]) -> list[bytes]:
    """Return the field `topics` of a request as buffers; large `records` are not copied.

    Raises LocalProtocolError if a partition occurs twice, or if a number is out of range.
    """
    if len({(item.topic, item.partition) for item in data}) != len(data):
        raise LocalProtocolError("A produce request names a partition twice; a broker accepts one batch for each.")
    request_buffers = _RequestBuffers()
    try:
        _write_topics(request_buffers, _layout_of(version), data)
    except struct.error as failure:
        raise LocalProtocolError(f"A number in a produce request does not fit its field: {failure}.") from failure
    return request_buffers.to_list()


def _check_version_and_acks(version: int, acks: int) -> None:
    if not FIRST_VERSION <= version <= LAST_VERSION:
        raise LocalProtocolError(f"Produce v{version} is not v{FIRST_VERSION} to v{LAST_VERSION}.")
    if acks not in VALID_ACKS:
        raise LocalProtocolError(f"A produce request cannot have acks {acks}, only -1 (all), 0 or 1.")


def _encode_head(version: int, correlation_id: int, client_id: str, acks: int, timeout_ms: int) -> bytes:
    """Return the fields between the size and the topics."""
    layout, name = _layout_of(version), client_id.encode()
    header = HEADER.pack(API_KEY, version, correlation_id, len(name) or -1)  # the length -1 means null
    return b"".join((header, name, layout.tags, layout.null_transactional_id, ACKS_AND_TIMEOUT.pack(acks, timeout_ms)))


def _write_topics(request_buffers: _RequestBuffers, layout: _Layout, data: Sequence[PartitionData]) -> None:
    """Write the topics, and the tags at the end of the whole request."""
    topics: dict[bytes, list[PartitionData]] = {}
    for item in data:
        topics.setdefault(item.topic, []).append(item)
    write = request_buffers.write
    write(layout.encode_array_length(len(topics)))
    for topic, partitions in topics.items():
        write(layout.encode_string_length(len(topic)), topic, layout.encode_array_length(len(partitions)))
        for item in partitions:
            length = layout.encode_records_length(len(item.header) + len(item.records))
            write(I32.pack(item.partition), length, item.header)
            request_buffers.write_records(item.records)
            write(layout.tags)
        write(layout.tags)
    write(layout.tags)


class _RequestBuffers:
    """Collector of the parts of a request; large records become separate buffers, the parts between them are joined."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._buffer_starts = [0]
        """The index of the first part of each buffer."""

    def write(self, *parts: bytes) -> None:
        self._parts += parts

    def write_records(self, records: bytes) -> None:
        self._parts.append(records)
        if len(records) > COPIED_BYTES:
            end = len(self._parts)
            self._buffer_starts += (end - 1, end)  # a buffer with only the records, and the next buffer

    def to_list(self) -> list[bytes]:
        parts, starts = self._parts, self._buffer_starts
        return [b"".join(parts[start:end]) for start, end in pairwise([*starts, len(parts)]) if start < end]
