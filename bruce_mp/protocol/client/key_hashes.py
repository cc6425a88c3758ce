"""The hashes by which Kafka's producers derive a partition from a record key.

The partition is the hash modulo the number of the topic's partitions.  Each hash is an unsigned number of at most 32
bits, so a client can send it in the field PartitionKey of a message: the daemon uses this field in place of the hash.
Sources: `Utils.murmur2` and `Utils.toPositive` of Kafka's Java client; `rdcrc32.c` and `rdfnv1a.c` of librdkafka.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import unpack_from
from typing import TYPE_CHECKING, Final
from zlib import crc32

from bruce_mp.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEY_HASHES", "Partitioner", "partition_key_of"]

_32_BITS: Final = 0xFFFFFFFF
_31_BITS: Final = 0x7FFFFFFF
_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_FACTOR: Final = 0x5BD1E995
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


@unique
class Partitioner(IntEnum):
    """The rule that derives the partition from a record key; the compiled kernels use the same numbers."""

    NONE = 0
    MURMUR2 = 1
    CRC32 = 2
    FNV1A = 3


def partition_key_of(key: bytes | bytearray | memoryview, partitioner: str = "murmur2") -> int:
    """Return the PartitionKey for the partition that a Kafka producer with `partitioner` chooses for `key`.

    `partitioner` is "murmur2" (the default of the Java client), "crc32" (`consistent_random` of librdkafka) or "fnv1a"
    (`fnv1a` of librdkafka). Raise `LocalProtocolError` for another name.
    """
    by_name = {rule.name.lower(): hash_key for rule, hash_key in KEY_HASHES.items()}
    if partitioner not in by_name:
        raise LocalProtocolError(f'Partitioner "{partitioner}" does not exist: name one of {", ".join(by_name)}.')
    return by_name[partitioner](bytes(key))


def _murmur2(key: bytes) -> int:
    """Return the low 31 bits of MurmurHash2, as Java's `toPositive(murmur2(key))` does."""
    hashed = _MURMUR2_SEED ^ len(key)
    word_count, tail = len(key) // 4, key[len(key) & -4 :]  # `tail` has the 0 to 3 bytes after the last whole word
    for word in unpack_from(f"<{word_count}I", key):
        mixed = word * _MURMUR2_FACTOR & _32_BITS
        mixed = (mixed ^ mixed >> 24) * _MURMUR2_FACTOR & _32_BITS
        hashed = hashed * _MURMUR2_FACTOR & _32_BITS ^ mixed
    if tail:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * _MURMUR2_FACTOR & _32_BITS
    hashed = (hashed ^ hashed >> 13) * _MURMUR2_FACTOR & _32_BITS
    return (hashed ^ hashed >> 15) & _31_BITS


def _fnv1a(key: bytes) -> int:
    """Return the absolute value of the FNV-1a hash, read as a signed 32-bit number, as librdkafka and Sarama do."""
    hashed = _FNV_OFFSET
    for byte in key:
        hashed = (hashed ^ byte) * _FNV_PRIME & _32_BITS
    return hashed if hashed <= _31_BITS else -hashed & _32_BITS


KEY_HASHES: Final[dict[Partitioner, Callable[[bytes], int]]] = {
    Partitioner.MURMUR2: _murmur2,
    Partitioner.CRC32: crc32,
    Partitioner.FNV1A: _fnv1a,
}
