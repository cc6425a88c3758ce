"""The protocol modules against real brokers: accepted requests, responses, and the records that a consumer reads."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.compression import Codec, compress
from bruce_mp.protocol.kafka.connection_events import (
    ConnectionReady,
    EncodedRequest,
    Event,
    Failed,
    MetadataReceived,
    ProduceAcked,
    ProducerIdReceived,
    Send,
)
from bruce_mp.protocol.kafka.kafka_types import PartitionAck, PartitionData
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer
from support.record_batches import KafkaRecord, encode_records
from support.whole_batch import whole_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.kafka_cluster import KafkaCluster

TIMEOUT_S = 20.0
NOW_MS = 1_700_000_000_000
E = TypeVar("E")


class Client:
    """A blocking socket around a BrokerConnection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.connection = BrokerConnection("bruce-test", f"127.0.0.1:{port}", timeout=TIMEOUT_S)
        self.connection.on_connecting(time.monotonic())
        self._socket.sendmsg(self.connection.on_connected(time.monotonic()))
        self._waiting: list[Event] = []

    def close(self) -> None:
        self._socket.close()

    def wait(self, kind: type[E]) -> E:
        while True:
            while not self._waiting:
                data = self._socket.recv(1 << 16)
                self._waiting += self.connection.receive(data, time.monotonic()) if data else self.connection.on_eof()
            event = self._waiting.pop(0)
            if isinstance(event, Send):
                self._socket.sendall(event.data)
            elif isinstance(event, Failed):
                raise event.error
            else:
                assert isinstance(event, kind)
                return event

    def send(self, sent: EncodedRequest) -> int:
        self._socket.sendall(b"".join(sent.buffers))
        return sent.correlation_id

    def produce(self, topic: str, batch: bytes, acks: int = -1) -> int:
        data = [PartitionData(topic.encode(), 0, batch)]
        return self.send(self.connection.request_produce(data, time.monotonic(), acks=acks, timeout_ms=5000))

    def ack(self) -> PartitionAck:
        (ack,) = self.wait(ProduceAcked).response.acks
        return ack

    def producer_id(self) -> Producer:
        give_up_at = time.monotonic() + TIMEOUT_S
        while True:
            self.send(self.connection.init_producer_id(time.monotonic()))
            got = self.wait(ProducerIdReceived).response
            if got.error == 0:
                return Producer(got.producer_id, got.producer_epoch, 0)
            assert got.is_retriable
            assert time.monotonic() < give_up_at, got


@contextmanager
def connected(kafka: KafkaCluster) -> Iterator[Client]:
    client = Client(kafka.port(1))
    try:
        client.wait(ConnectionReady)
        yield client
    finally:
        client.close()


def batch_of(records: list[KafkaRecord], codec: Codec = Codec.NONE, producer: Producer = NO_PRODUCER) -> bytes:
    section = compress(codec, None, encode_records(records))
    latest = max(record.timestamp for record in records)
    return whole_batch(section, len(records), records[0].timestamp, latest, codec=codec, producer=producer)


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
            client.produce(topic, batch_of(records[at : at + 100], codec, producer._replace(base_sequence=at)))
            for at in range(0, 500, 100)
        ]
        assert client.connection.unanswered == tuple(in_flight)
        acks = [client.ack() for _ in in_flight]
    assert [(ack.error, ack.base_offset) for ack in acks] == [(0, at) for at in range(0, 500, 100)]
    read = kafka_versions.read_all(topic, expected=500)[0]
    assert [(one.timestamp, one.key, one.value) for one in read] == [record[:3] for record in records]
    assert [one.headers for one in read] == [(("h", b"%d" % n),) for n in range(500)]


def test_a_batch_sent_twice_is_stored_once(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-twice")
    with connected(kafka_versions) as client:
        batch = batch_of(some_records(0, 10), producer=client.producer_id())
        client.produce("protocol-twice", batch)
        client.produce("protocol-twice", batch)
        first, second = client.ack(), client.ack()
    assert (first.error, first.base_offset) == (0, 0)
    assert (second.error, second.base_offset) in {(0, 0), (46, -1)}
    assert len(kafka_versions.read_all("protocol-twice", expected=10)[0]) == 10


def test_a_gap_in_the_sequence_is_error_45(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-gap")
    with connected(kafka_versions) as client:
        producer = client.producer_id()
        client.produce("protocol-gap", batch_of(some_records(0, 2), producer=producer))
        client.produce("protocol-gap", batch_of(some_records(5, 2), producer=producer._replace(base_sequence=5)))
        assert [client.ack().error, client.ack().error] == [0, 45]


def test_acks_0_and_acks_1_are_stored(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-acks")
    with connected(kafka_versions) as client:
        client.produce("protocol-acks", batch_of(some_records(0, 1)), acks=0)
        client.produce("protocol-acks", batch_of(some_records(1, 1)), acks=1)
        assert client.ack().base_offset == 1
    assert len(kafka_versions.read_all("protocol-acks", expected=2)[0]) == 2


def test_keyless_records_on_a_compacted_topic_are_named(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-compacted", config={"cleanup.policy": "compact"})
    records = some_records(0, 5)
    records[3] = records[3]._replace(key=None)
    with connected(kafka_versions) as client:
        client.produce("protocol-compacted", batch_of(records))
        ack = client.ack()
    assert ack.error == 87
    assert [index for index, _ in ack.record_errors] == [3]


def test_a_batch_that_is_too_large_is_error_10(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-small", config={"max.message.bytes": "1000"})
    with connected(kafka_versions) as client:
        client.produce("protocol-small", batch_of(some_records(40, 20)))
        assert client.ack().error == 10


def test_a_damaged_batch_is_error_2_or_87(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("protocol-damaged")
    batch = bytearray(batch_of(some_records(0, 3)))
    batch[-1] ^= 1
    with connected(kafka_versions) as client:
        client.produce("protocol-damaged", bytes(batch))
        assert client.ack().error in {2, 87}
