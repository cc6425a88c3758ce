"""The hashes of record keys, compared with vectors of Kafka's own tests."""

from __future__ import annotations

import pytest

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.key_hashes import KEY_HASHES, Partitioner, partition_key_of

JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From `UtilsTest.testMurmur2` of the Java client."""


@pytest.mark.parametrize("key", JAVA_MURMUR2)
def test_murmur2_is_the_positive_hash_of_the_java_client(key: bytes) -> None:
    assert partition_key_of(key) == partition_key_of(key, "murmur2") == JAVA_MURMUR2[key] & 0x7FFFFFFF


def test_crc32_has_the_check_value_of_its_specification() -> None:
    assert partition_key_of(b"123456789", "crc32") == 0xCBF43926


@pytest.mark.parametrize(("key", "hashed"), [(b"a", -0xE40C292C & 0xFFFFFFFF), (b"foobar", -0xBF9CF968 & 0xFFFFFFFF)])
def test_fnv1a_is_the_absolute_value_of_the_standard_hash(key: bytes, hashed: int) -> None:
    assert partition_key_of(key, "fnv1a") == hashed


@pytest.mark.parametrize("rule", [*KEY_HASHES])
def test_every_hash_fits_a_partition_key_for_every_length_of_key(rule: Partitioner) -> None:
    hashes = [KEY_HASHES[rule](bytes(range(256))[:length]) for length in range(64)]
    assert all(0 <= each < 2**32 for each in hashes)
    assert len(set(hashes[1:])) == 63


def test_an_unknown_partitioner_is_refused_with_the_known_names() -> None:
    with pytest.raises(LocalProtocolError, match="murmur2, crc32, fnv1a"):
        partition_key_of(b"k", "md5")
