"""Derive columns of the messages: partition keys from record keys, and UTC timestamps from local times.

The hash functions are those of `protocol.client.key_hashes`, applied to all keys of a column together.
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

_MURMUR2_SEED: Final = np.uint32(0x9747B28C)
_MURMUR2_FACTOR: Final = np.uint32(0x5BD1E995)
_FNV_OFFSET: Final = np.uint32(0x811C9DC5)
_FNV_PRIME: Final = np.uint32(0x01000193)
_31_BITS: Final = np.uint32(0x7FFFFFFF)
_13, _15, _24 = np.uint32(13), np.uint32(15), np.uint32(24)  # shifts of murmur2
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
"""Masks for the incomplete last word of a key; the index is the number of bytes that the key has in it."""

Uint32Array = np.ndarray[Any, np.dtype[np.uint32]]
"""For each key its hash, or 4 of its bytes (a word)."""
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
"""For each key its size in bytes, or its offset in the joined bytes of all keys."""


def to_utc(column: pa.Array, time_zone: str | None) -> pa.Array:
    """Return the timestamps as a column in UTC. Raise `RowError` for an unknown zone.

    Timestamps without a zone are local times in `time_zone`; None stands for this host's zone.
    """
    if column.type.tz is not None:
        return column
    if time_zone is None:  # Python converts, because Arrow has no name for this host's zone
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
    """Return the partition key of each record key in a binary column.

    The result is null for a null key, and with CRC32 also for an empty key.
    """
    hashes = pa.array(_HASHES[partitioner](*_contents_of(column)).astype(np.int64))
    has_no_key = pc.is_null(column)
    if partitioner is Partitioner.CRC32:  # librdkafka's consistent_random treats an empty key as no key
        has_no_key = pc.or_(has_no_key, pc.equal(pc.fill_null(pc.binary_length(column), 0), 0))
    return pc.if_else(has_no_key, None, hashes)


def _contents_of(column: pa.Array) -> tuple[bytes, Int64Array, Int64Array]:
    """Return the joined bytes of all keys, and the offset and size of each key; a null key has size 0."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    sizes = np.where(np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_), np.diff(bounds), 0)
    return data.to_pybytes() if data else b"", bounds[:-1], sizes


def _crc32(data: bytes, starts: Int64Array, sizes: Int64Array) -> Uint32Array:
    ends = (starts + sizes).tolist()
    hashes = [zlib.crc32(data[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.array(hashes, np.uint32)


def _murmur2(data: bytes, starts: Int64Array, sizes: Int64Array) -> Uint32Array:
    hashes = _MURMUR2_SEED ^ sizes.astype(np.uint32)
    whole_words = sizes // 4
    padded = data + bytes(4)  # the last word of the last key may end up to 3 bytes after the data
    for index in range(int(whole_words.max(initial=0))):  # hashes word `index` of all keys that have it
        rows = np.flatnonzero(whole_words > index)
        mixed = _read_words(padded, starts[rows] + 4 * index) * _MURMUR2_FACTOR
        hashes[rows] = (hashes[rows] * _MURMUR2_FACTOR) ^ ((mixed ^ (mixed >> _24)) * _MURMUR2_FACTOR)
    tail_sizes = sizes % 4
    rows = np.flatnonzero(tail_sizes)
    tails = _read_words(padded, starts[rows] + 4 * whole_words[rows]) & _TAIL_MASKS[tail_sizes[rows]]
    hashes[rows] = (hashes[rows] ^ tails) * _MURMUR2_FACTOR
    hashes = (hashes ^ (hashes >> _13)) * _MURMUR2_FACTOR
    return (hashes ^ (hashes >> _15)) & _31_BITS


def _read_words(data: bytes, offsets: Int64Array) -> Uint32Array:
    """Return the little-endian word that begins at each of `offsets`, which need not be multiples of 4."""
    words: Uint32Array = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    return words[offsets]


def _fnv1a(data: bytes, starts: Int64Array, sizes: Int64Array) -> Uint32Array:
    hashes = np.full(len(sizes), _FNV_OFFSET)
    content = np.frombuffer(data, np.uint8)
    for index in range(int(sizes.max(initial=0))):  # hashes byte `index` of all keys that have it
        rows = np.flatnonzero(sizes > index)
        hashes[rows] = (hashes[rows] ^ content[starts[rows] + index]) * _FNV_PRIME
    return np.where(hashes <= _31_BITS, hashes, np.uint32(0) - hashes)  # like Sarama: the magnitude of the int32


_HASHES: Final[dict[Partitioner, Callable[[bytes, Int64Array, Int64Array], Uint32Array]]] = {
    Partitioner.MURMUR2: _murmur2,
    Partitioner.CRC32: _crc32,
    Partitioner.FNV1A: _fnv1a,
}
