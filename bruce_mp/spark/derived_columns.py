"""Derive columns of the messages: partition keys from record keys, and UTC timestamps from local ones.

The hashes are those of `protocol.client.key_hashes`, for all keys of a column together.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.spark.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["hash_keys", "to_utc"]

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_FNV_OFFSET: Final = np.uint32(0x811C9DC5)
_FNV_PRIME: Final = np.uint32(0x01000193)
_31_BITS: Final = np.uint32(0x7FFFFFFF)
_13, _15, _24 = np.uint32(13), np.uint32(15), np.uint32(24)
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)

Words = np.ndarray[Any, np.dtype[np.uint32]]
Places = np.ndarray[Any, np.dtype[np.int64]]


def to_utc(column: pa.Array, time_zone: str | None) -> pa.Array:
    """Return a timestamp column in UTC; one without a zone is local in the session's, or if None this host's, zone."""
    if column.type.tz is not None:
        return column
    if time_zone is None:
        micros = [None if time is None else round(time.timestamp() * 1e6) for time in column.to_pylist()]
        return pa.array(micros, pa.timestamp("us", "UTC"))
    try:
        return pc.assume_timezone(column, time_zone, ambiguous="earliest", nonexistent="latest")
    except pa.ArrowInvalid as error:
        raise RowError(
            f"Column 'timestamp' is timestamp_ntz, and the time zone '{time_zone}' of the session is not known here: "
            "cast the column to timestamp."
        ) from error


def hash_keys(column: pa.Array, partitioner: Partitioner) -> pa.Array:
    """Return the partition key of each record key in a binary column; null without a key."""
    hashed = pa.array(_HASHES[partitioner](*_contents(column)).astype(np.int64))
    has_none = pc.is_null(column)
    if partitioner is Partitioner.CRC32:  # librdkafka's consistent_random places an empty key anywhere
        has_none = pc.or_(has_none, pc.equal(pc.fill_null(pc.binary_length(column), 0), 0))
    return pc.if_else(has_none, None, hashed)


def _contents(column: pa.Array) -> tuple[bytes, Places, Places]:
    """Return the bytes of all keys, and the place and the size of each; a null has size 0."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    sizes = np.where(np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_), np.diff(ends), 0)
    return data.to_pybytes() if data else b"", ends[:-1], sizes


def _crc32(data: bytes, places: Places, sizes: Places) -> Words:
    ends = (places + sizes).tolist()
    hashes = [zlib.crc32(data[place:end]) for place, end in zip(places.tolist(), ends, strict=True)]
    return np.array(hashes, np.uint32)


def _murmur2(data: bytes, places: Places, sizes: Places) -> Words:
    """Mix the n-th word of all keys at once; `_read` may read up to three bytes behind a key."""
    hashed = _SEED ^ sizes.astype(np.uint32)
    words, padded = sizes // 4, data + bytes(4)
    for number in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > number)
        mixed = _read(padded, places[rows] + 4 * number) * _FACTOR
        hashed[rows] = (hashed[rows] * _FACTOR) ^ ((mixed ^ (mixed >> _24)) * _FACTOR)
    rest = sizes % 4
    rows = np.flatnonzero(rest)
    tails = _read(padded, places[rows] + 4 * words[rows]) & _TAIL_MASKS[rest[rows]]
    hashed[rows] = (hashed[rows] ^ tails) * _FACTOR
    hashed = (hashed ^ (hashed >> _13)) * _FACTOR
    return (hashed ^ (hashed >> _15)) & _31_BITS


def _read(data: bytes, places: Places) -> Words:
    """Return the little-endian words at these places."""
    words: Words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    return words[places]


def _fnv1a(data: bytes, places: Places, sizes: Places) -> Words:
    hashed = np.full(len(sizes), _FNV_OFFSET)
    content = np.frombuffer(data, np.uint8)
    for number in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > number)
        hashed[rows] = (hashed[rows] ^ content[places[rows] + number]) * _FNV_PRIME
    return np.where(hashed <= _31_BITS, hashed, np.uint32(0) - hashed)


_HASHES: Final[dict[Partitioner, Callable[[bytes, Places, Places], Words]]] = {
    Partitioner.MURMUR2: _murmur2,
    Partitioner.CRC32: _crc32,
    Partitioner.FNV1A: _fnv1a,
}
