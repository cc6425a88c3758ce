"""Parse and validate a batch of client messages.

`protocol/client/messages.py` specifies the layouts and the order of the checks.
`parse` groups the messages of a batch by topic and type, because later steps work per group.  The type is AnyPartition
or PartitionKey, given by a message's API key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, unique
from functools import cache, lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.client.key_hashes import KEY_HASHES, Partitioner
from bruce_mp.protocol.client.record_headers import MAX_HEADERS_BYTES, decode_headers
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Failure", "GroupKey", "ParsedBatch", "ParsedMessage", "PartitionerOfTopic", "RejectedMessage", "parse"]

_ANY_PARTITION: Final = 256  # API keys
_PARTITION_KEY: Final = 257
_GENERIC: Final = Struct(">ihh")  # of any message: size, API key, version
_HEADER: Final = Struct(">ihih")  # of AnyPartition: size, API key, version and flags as one number, topic size
_KEYED_HEADER: Final = Struct(">ihiIh")  # of PartitionKey: the same, with the partition key before the topic size
_SIZE: Final = Struct(">i")
_NULL: Final = -1  # size of a null key or value


@lru_cache(maxsize=1024)
def _body_layout(topic_size: int) -> Struct:
    """Return the layout of the fields behind the topic size: topic, timestamp, key size, value size.

    The last field has the value size only if the key is empty.
    """
    return Struct(f">{topic_size}sqii")


@unique
class Failure(IntEnum):
    """The reason for a rejection, with the number of the same reason in `DiscardReason`."""

    MALFORMED = 1
    UNSUPPORTED_API_KEY = 2
    UNSUPPORTED_VERSION = 3


class RejectedMessage(NamedTuple):
    """A rejected message: `slot` is its index in the batch; API key and version are 0 if they are not readable."""

    slot: int
    failure: Failure
    api_key: int
    version: int


ParsedMessage = tuple[int, int, int, int, int, int, int, int, int, int]
"""A valid message: arrival number, timestamp, partition key, options, and six offsets in the buffer: start and end of
its key, of its value and of its record headers.  The options are those of its record, `OPTION_...` in `slab.layout`.

It is a plain tuple, because each message needs one and a named tuple takes three times as long to create.
"""

GroupKey = tuple[bytes, bool]
"""A group's topic, and *keyed*: True if a client or a partitioner has given the messages partition keys."""


PartitionerOfTopic = Callable[[bytes], Partitioner]
"""A function that returns the partitioner of a topic: the hash of record keys that chooses their partitions."""


class ParsedBatch(NamedTuple):
    """A parsed batch: the messages of each group in order of arrival, and the rejected ones."""

    groups: dict[GroupKey, list[ParsedMessage]]
    rejections: list[RejectedMessage]


def parse(
    buffer: memoryview,
    extents: Sequence[tuple[int, int]],
    first_arrival: int,
    skip: frozenset[int] = frozenset(),
    *,
    sources: Sequence[int] | None = None,
    partitioners: PartitionerOfTopic | None = None,
) -> ParsedBatch:
    """Parse the messages of `buffer` at `extents`, pairs of offset and length.

    Message i has the arrival number first_arrival + i.  If `sources` are given, the messages come from streams, and the
    arrival number is stream_arrival(first_arrival + i, sources[i]).  Messages with arrival numbers in `skip` are
    omitted.  If `partitioners` is None, no record key chooses a partition.
    """
    partitioner_of = None if partitioners is None else cache(partitioners)
    groups: dict[GroupKey, list[ParsedMessage]] = {}
    rejections: list[RejectedMessage] = []
    for index, (at, length) in enumerate(extents):
        arrival = first_arrival + index
        if sources is not None:
            arrival = lay.stream_arrival(arrival, sources[index])
        if arrival in skip:
            continue
        try:
            group, message = _parse_one(buffer, at, length, arrival)
        except (_Malformed, struct.error):
            rejections.append(_rejection(buffer, index, at, length))
            continue
        if partitioner_of is not None and not group[1]:
            group, message = _apply_partitioner(buffer, group, message, partitioner_of(group[0]))
        if group in groups:
            groups[group].append(message)
        else:
            groups[group] = [message]
    return ParsedBatch(groups, rejections)


class _Malformed(Exception):  # noqa: N818 - control flow inside this module, not an error of ours
    pass


def _parse_one(buffer: memoryview, at: int, length: int, arrival: int) -> tuple[GroupKey, ParsedMessage]:
    # A read may go past the message's end, but not past the buffer's.  The last check rejects such a message.
    end = at + length
    size, api_key, version_and_flags, topic_size = _HEADER.unpack_from(buffer, at)
    partition_key, topic_at = 0, at + _HEADER.size
    if api_key == _PARTITION_KEY:
        size, api_key, version_and_flags, partition_key, topic_size = _KEYED_HEADER.unpack_from(buffer, at)
        topic_at = at + _KEYED_HEADER.size
    if size != length or api_key not in _API_KEYS or version_and_flags not in _VERSIONS or topic_size <= 0:
        raise _Malformed
    topic, timestamp, key_size, value_size = _body_layout(topic_size).unpack_from(buffer, topic_at)
    key_at = topic_at + topic_size + 12  # behind the timestamp (8 bytes) and the key size (4)
    options = 0
    # In version 2 a size of -1 means null and 0 means empty.  The record has size 0 for both; options tell them apart.
    if version_and_flags == _VERSION_2 and key_size in {_NULL, 0}:
        key_size, options = 0, 0 if key_size else lay.OPTION_EMPTY_KEY
    key_end = key_at + key_size
    value_at = key_end + _SIZE.size
    if key_size:
        if key_size < 0:
            raise _Malformed
        (value_size,) = _SIZE.unpack_from(buffer, key_end)
    if version_and_flags == _VERSION_2 and value_size in {_NULL, 0}:
        value_size, options = 0, options | (lay.OPTION_NULL_VALUE if value_size else lay.OPTION_EMPTY_VALUE)
    value_end = value_at + value_size
    headers_at = _find_headers(buffer, value_end, end) if version_and_flags else value_end
    # Only in version 0, `headers_at` is `value_end`: a message has no record headers, and must end with its value.
    if value_size < 0 or (headers_at != end and headers_at == value_end):
        raise _Malformed
    bounds = (key_at, key_end, value_at, value_end, headers_at, end)
    return (topic, api_key == _PARTITION_KEY), (arrival, timestamp, partition_key, options, *bounds)


def _apply_partitioner(
    buffer: memoryview, group: GroupKey, message: ParsedMessage, partitioner: Partitioner
) -> tuple[GroupKey, ParsedMessage]:
    """Give an AnyPartition message the hash of its record key as partition key, unless the partitioner ignores it."""
    topic, _ = group
    options, key_at, key_end = message[3:6]
    # All partitioners ignore a null key.  CRC32 ignores an empty key as well, as librdkafka does.
    is_ignored = key_at == key_end and (partitioner is Partitioner.CRC32 or not options & lay.OPTION_EMPTY_KEY)
    if partitioner is Partitioner.NONE or is_ignored:
        return group, message
    hashed = KEY_HASHES[partitioner](bytes(buffer[key_at:key_end]))
    return (topic, True), (*message[:2], hashed, options | lay.OPTION_HASHED, *message[4:])


def _find_headers(buffer: memoryview, value_end: int, end: int) -> int:
    """Return the start of the record headers, which end at `end`.  Raises _Malformed for invalid headers."""
    (size,) = _SIZE.unpack_from(buffer, value_end)
    at = value_end + _SIZE.size
    if not 0 <= size <= MAX_HEADERS_BYTES or at + size != end or decode_headers(buffer[at:end]) is None:
        raise _Malformed
    return at


_API_KEYS: Final = frozenset({_ANY_PARTITION, _PARTITION_KEY})
_VERSION_1: Final = 1 << 16  # with record headers
_VERSION_2: Final = 2 << 16  # with record headers, and with fields that may be null
_VERSIONS: Final = frozenset({0, _VERSION_1, _VERSION_2})
"""The valid values of version and flags as one number; the flags are 0 in every version."""


def _rejection(buffer: memoryview, index: int, at: int, length: int) -> RejectedMessage:
    """Return the rejection with the reason of the first check that fails."""
    if length < _GENERIC.size:
        return RejectedMessage(index, Failure.MALFORMED, 0, 0)
    size, api_key, version = _GENERIC.unpack_from(buffer, at)
    if size != length:
        return RejectedMessage(index, Failure.MALFORMED, 0, 0)
    if api_key not in _API_KEYS:
        return RejectedMessage(index, Failure.UNSUPPORTED_API_KEY, api_key, version)
    if version not in {0, 1, 2}:
        return RejectedMessage(index, Failure.UNSUPPORTED_VERSION, api_key, version)
    return RejectedMessage(index, Failure.MALFORMED, api_key, version)
