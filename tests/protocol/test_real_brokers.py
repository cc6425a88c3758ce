"""The protocol modules against real brokers: accepted requests, responses, and the records that a consumer reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.connection_events import MetadataReceived
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from support.broker_client import BrokerClient
from support.record_batches import KafkaRecord, batch_of

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.kafka_types import PartitionAck
    from support.kafka_cluster import KafkaCluster

NOW_MS = time.time_ns() // 1_000_000  # a broker forgets a producer a day after the timestamp of its last record


def produce(client: BrokerClient, topic: str, batch: bytes, acks: int = -1) -> int:
    return client.produce(PartitionData(topic.encode(), 0, batch), acks=acks)


def ack(client: BrokerClient) -> PartitionAck:
    (only,) = client.acks()
    return only


def connected(kafka: KafkaCluster) -> BrokerClient:
    return BrokerClient(f"127.0.0.1:{kafka.port(1)}")


def some_records(first: int, count: int) -> list[KafkaRecord]:
    numbers = range(first, first + count)
    return [KafkaRecord(NOW_MS - 7 * n, b"key %d" % n, b"value " * (n % 50 + 1), ((b"h", b"%d" % n),)) for n in numbers]


def test_metadata_describes_the_cluster(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-metadata", partitions=3)
    with connected(kafka_versions) as client:
        assert client.connection.capabilities.has_producer_ids
        assert client.connection.capabilities.accepts(Codec.ZSTD)
        client.send(client.connection.request_metadata([b"protocol-metadata", b"protocol-none"], time.monotonic()))
        metadata = client.wait(MetadataReceived).metadata
    assert metadata.brokers[1].port == kafka_versions.port(1)
    assert [one.leader for one in metadata.topics[b"protocol-metadata"].partitions.values()] == [1, 1, 1]
    assert metadata.topics[b"protocol-none"].error == 3  # and it was not created by asking


@pytest.mark.parametrize("codec", Codec)
def test_a_consumer_reads_produced_records(kafka_versions: KafkaCluster, codec: Codec) -> None:
    topic = f"protocol-{codec.name.lower()}"
    kafka_versions.create_topic(topic)
    records = some_records(0, 500)
    with connected(kafka_versions) as client:
        producer = client.producer_id()
        in_flight = [
            produce(client, topic, batch_of(records[at : at + 100], codec, producer._replace(base_sequence=at)))
            for at in range(0, 500, 100)
        ]
        assert client.connection.unanswered == tuple(in_flight)
        acks = [ack(client) for _ in in_flight]
    assert [(each.error, each.base_offset) for each in acks] == [(0, at) for at in range(0, 500, 100)]
    read = kafka_versions.read_all(topic, expected=500)[0]
    assert [(one.timestamp, one.key, one.value) for one in read] == [record[:3] for record in records]
    assert [one.headers for one in read] == [(("h", b"%d" % n),) for n in range(500)]


def test_a_batch_sent_twice_is_stored_once(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-twice")
    with connected(kafka_versions) as client:
        batch = batch_of(some_records(0, 10), producer=client.producer_id())
        produce(client, "protocol-twice", batch)
        produce(client, "protocol-twice", batch)
        first, second = ack(client), ack(client)
    assert (first.error, first.base_offset) == (0, 0)
    assert (second.error, second.base_offset) in {(0, 0), (46, -1)}
    assert len(kafka_versions.read_all("protocol-twice", expected=10)[0]) == 10


def test_a_gap_in_the_sequence_is_error_45(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-gap")
    with connected(kafka_versions) as client:
        producer = client.producer_id()
        produce(client, "protocol-gap", batch_of(some_records(0, 2), producer=producer))
        produce(client, "protocol-gap", batch_of(some_records(5, 2), producer=producer._replace(base_sequence=5)))
        assert [ack(client).error, ack(client).error] == [0, 45]


def test_acks_0_and_acks_1_are_stored(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-acks")
    with connected(kafka_versions) as client:
        produce(client, "protocol-acks", batch_of(some_records(0, 1)), acks=0)
        produce(client, "protocol-acks", batch_of(some_records(1, 1)), acks=1)
        assert ack(client).base_offset == 1
    assert len(kafka_versions.read_all("protocol-acks", expected=2)[0]) == 2


def test_keyless_records_on_a_compacted_topic_are_named(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-compacted", config={"cleanup.policy": "compact"})
    records = some_records(0, 5)
    records[3] = records[3]._replace(key=None)
    with connected(kafka_versions) as client:
        produce(client, "protocol-compacted", batch_of(records))
        answer = ack(client)
    assert answer.error == 87
    assert [index for index, _ in answer.record_errors] == [3]


def test_a_batch_that_is_too_large_is_error_10(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-small", config={"max.message.bytes": "1000"})
    with connected(kafka_versions) as client:
        produce(client, "protocol-small", batch_of(some_records(40, 20)))
        assert ack(client).error == 10


def test_a_damaged_batch_is_error_2_or_87(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-damaged")
    batch = bytearray(batch_of(some_records(0, 3)))
    batch[-1] ^= 1
    with connected(kafka_versions) as client:
        produce(client, "protocol-damaged", bytes(batch))
        assert ack(client).error in {2, 87}
