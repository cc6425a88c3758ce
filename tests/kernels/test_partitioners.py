"""Record keys choose the partition: both variants store the hashes of Kafka's producers as partition keys."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.protocol.client.key_hashes import KEY_HASHES, Partitioner
from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.runs import segment_records
from support.examples import examples
from support.kafka_dist import NEWEST, ensure
from support.key_traffic import random_keys, run_java_source
from support.slabs import Input, contents, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

TOPICS = [(b"java", 7), (b"crc", 5), (b"fnv", 1), (b"plain", 3)]
RULES = {
    b"java": Partitioner.MURMUR2,
    b"crc": Partitioner.CRC32,
    b"fnv": Partitioner.FNV1A,
    b"new": Partitioner.MURMUR2,
}

messages = st.tuples(
    st.sampled_from([*RULES, b"plain"]), st.binary(max_size=9), st.binary(max_size=40), st.none() | st.integers(0, 99)
)


def partitioner_of(topic: bytes) -> Partitioner:
    return RULES.get(topic, Partitioner.NONE)


def an_input(slab: Slab) -> Input:
    sender = Input(slab, topics=TOPICS)
    sender.lanes.partitioners = partitioner_of
    return sender


def key_of(topic: bytes, key: bytes, partition_key: int | None) -> int | None:
    """Return the partition key with which a message is routed; None without one."""
    rule = partitioner_of(topic)
    placed = partition_key is None and key and rule is not Partitioner.NONE
    return KEY_HASHES[rule](key) if placed else partition_key


def records(slab: Slab, segments: Sequence[Segment]) -> dict[int, Record]:
    return {record.arrival: record for segment in segments for _, record in segment_records(slab, segment)}


@examples(40)
@given(batches=st.lists(st.lists(messages, min_size=1, max_size=12), min_size=1, max_size=4))
def test_keys_become_partition_keys_by_the_rule_of_their_topic(
    batches: list[list[tuple[bytes, bytes, bytes, int | None]]],
) -> None:
    with new_slab() as slab:
        sender = an_input(slab)
        for batch in batches:
            ingested = sender.receive([datagram(*message) for message in batch])
            keyed = sum(message[3] is not None for message in batch)
            assert (ingested.any_partition_count, ingested.partition_key_count) == (len(batch) - keyed, keyed)
            assert not ingested.no_room
        found = records(slab, sender.close_all())
        sent = [message for batch in batches for message in batch]
        assert len(found) == len(sent)
        for arrival, (topic, _, key, number) in enumerate(sent):
            record, expected = found[arrival], key_of(topic, key, number)
            assert bool(record.flags & lay.FLAG_PARTITION_KEY) == (expected is not None)
            assert record.partition_key == (expected or 0)
            assert record.is_partition_key == (number is not None)


def test_messages_of_one_key_are_in_one_lane_with_its_partition_keys(slab: Slab) -> None:
    """A client that hashes, and one that leaves it to the daemon, share the order of a key."""
    sender = an_input(slab)
    hashed = KEY_HASHES[Partitioner.MURMUR2](b"k")
    sender.receive([datagram(b"java", b"%d" % at, b"k", (None, hashed)[at % 2]) for at in range(8)])
    [segment] = sender.close_all()
    assert [record.arrival for _, record in segment_records(slab, segment)] == [*range(8)]


def test_an_empty_key_is_placed_as_by_the_producer_with_the_same_hash(slab: Slab) -> None:
    sender = an_input(slab)
    sender.receive(
        [
            encode(topic, b"v", key, timestamp_ms=0, keep_empty=True)
            for topic in (b"java", b"crc", b"fnv", b"new")
            for key in (b"", None)
        ]
    )
    found = records(slab, sender.close_all())
    placed = [bool(found[arrival].options & lay.OPTION_HASHED) for arrival in range(8)]
    assert placed == [True, False, False, False, True, False, True, False]
    assert found[0].partition_key == KEY_HASHES[Partitioner.MURMUR2](b"")


def test_a_changed_partitioner_applies_to_later_messages(slab: Slab) -> None:
    sender = an_input(slab)
    sender.receive([datagram(b"java", b"", b"k")])
    sender.lanes.partitioners = lambda _: Partitioner.CRC32
    sender.receive([datagram(b"java", b"", b"k")])
    sender.lanes.partitioners = None
    sender.receive([datagram(b"java", b"", b"k")])
    expected = [KEY_HASHES[Partitioner.MURMUR2](b"k"), KEY_HASHES[Partitioner.CRC32](b"k"), 0]
    assert sorted(content.partition_key for content in contents(slab)) == sorted(expected)


def test_an_unknown_topic_is_looked_up_once_in_a_batch(slab: Slab) -> None:
    asked: dict[bytes, int] = defaultdict(int)

    def count(topic: bytes) -> Partitioner:
        asked[topic] += 1
        return Partitioner.MURMUR2

    sender = Input(slab)
    sender.lanes.partitioners = count
    sender.receive([datagram(b"new", b"", b"k%d" % at, (None, 1)[at % 2]) for at in range(8)])
    assert {content.partition_key for content in contents(slab)} >= {1, KEY_HASHES[Partitioner.MURMUR2](b"k2")}
    assert asked == {b"new": 1}


@pytest.fixture(scope="module")
def java_hashes() -> dict[bytes, tuple[int, int]]:
    """Return the hashes of keys, and their partitions of seven, by the Java client."""
    keys = random_keys(20_000)
    lines = run_java_source(ensure(NEWEST), "KeyHashes.java", ["7"], keys)
    return {
        key: (int(hashed), int(partition)) for key, (hashed, partition) in zip(keys, map(str.split, lines), strict=True)
    }


@pytest.mark.kafka
def test_murmur2_places_20000_keys_as_the_java_client_does(java_hashes: dict[bytes, tuple[int, int]]) -> None:
    keys = [*java_hashes]
    with new_slab(Geometry(chunks=4096, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)) as slab:
        sender = an_input(slab)
        for start in range(0, len(keys), 1000):
            batch = [datagram(b"java", b"", key) for key in keys[start : start + 1000]]
            sizes = [len(message) for message in batch]
            extents = [*zip(accumulate(sizes, initial=0), sizes, strict=False)]
            assert not sender.lanes.ingest(memoryview(b"".join(batch)), extents, start, 1).no_room
        found = {content.key: content.partition_key for content in contents(slab)}
        lanes = {index for _, index, _ in sender.lanes._lanes}
    assert {key: (hashed, hashed % 7) for key, hashed in found.items()} == java_hashes
    assert lanes == set(range(7))
