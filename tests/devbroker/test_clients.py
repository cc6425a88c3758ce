"""Real clients against the embedded broker: kafka-python and confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as RdPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
from kafka.errors import InvalidPartitionsError, UnknownTopicOrPartitionError

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process
PARTITIONS = 3
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READ_WITHIN = 15.0


@pytest.fixture(scope="module")
def process() -> Iterator[DevBroker]:
    with DevBroker(brokers=3, strict=True) as started:
        yield started


@pytest.fixture
def broker(process: DevBroker) -> Iterator[DevBroker]:
    process.add_topic("hits", PARTITIONS)
    yield process
    process.clear_faults()
    process.delete_topic("hits")


def poll_until(count: int, poll: Callable[[], list[bytes]]) -> list[bytes]:
    got: list[bytes] = []
    deadline = time.monotonic() + READ_WITHIN
    while len(got) < count and time.monotonic() < deadline:
        got += poll()
    return got


def read_with_kafka_python(broker: DevBroker, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap.split(","))
    try:
        consumer.assign([TopicPartition("hits", number) for number in range(PARTITIONS)])
        consumer.seek_to_beginning()
        return poll_until(count, lambda: [r.value for found in consumer.poll(500).values() for r in found])
    finally:
        consumer.close()


def read_with_librdkafka(broker: DevBroker, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([RdPartition("hits", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        return poll_until(count, lambda: [m.value() or b"" for m in consumer.consume(1000, 0.5) if m.error() is None])
    finally:
        consumer.close()


def send_with_librdkafka(broker: DevBroker, values: list[bytes], **settings: Any) -> list[str]:
    """Return the errors of the delivery reports."""
    errors: list[str] = []
    config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    producer = Producer(config | {name.replace("_", "."): value for name, value in settings.items()})
    for value in values:
        producer.produce("hits", key=value, value=value, on_delivery=lambda e, _: errors.append(str(e)) if e else None)
    assert producer.flush(READ_WITHIN) == 0
    return errors


def values_of(broker: DevBroker) -> Counter[bytes | None]:
    return Counter(record.value for partition in broker.fetch("hits") for record in partition)


def numbered(count: int) -> list[bytes]:
    return [b"value-%06d" % number for number in range(count)]


def test_kafka_python_writes_and_all_clients_read(broker: DevBroker) -> None:
    values = numbered(300)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap.split(","))
    try:
        for value in values:
            producer.send("hits", key=value, value=value, timestamp_ms=1234, headers=[("h", value)])
        producer.flush(READ_WITHIN)
    finally:
        producer.close()
    stored = [record for partition in broker.fetch("hits") for record in partition]
    assert {(r.key, r.value, r.timestamp, r.headers) for r in stored} == {(v, v, 1234, (("h", v),)) for v in values}
    assert Counter(read_with_kafka_python(broker, 300)) == Counter(values)
    assert Counter(read_with_librdkafka(broker, 300)) == Counter(values)


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_with_every_codec(broker: DevBroker, codec: str) -> None:
    values = [value * 20 for value in numbered(500)]
    assert send_with_librdkafka(broker, values, compression_type=codec) == []
    assert values_of(broker) == Counter(values)
    assert Counter(read_with_librdkafka(broker, 500)) == Counter(values)


def test_an_idempotent_producer_survives_lost_acks_and_errors_without_duplicates(broker: DevBroker) -> None:
    before = broker.statistics()
    broker.inject(Fault(action=FaultAction.ACK_LOST, topic="hits", nth=2, every=5, times=3))
    broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=7, topic="hits", nth=3, every=4, times=3))
    broker.inject(Fault(action=FaultAction.ERROR, code=19, topic="hits", nth=4, every=4, times=3))
    values = numbered(3000)
    assert send_with_librdkafka(broker, values, retry_backoff_ms=10, batch_num_messages=50) == []
    assert values_of(broker) == Counter(values)
    after = broker.statistics()
    assert after.duplicates > before.duplicates
    assert after.faults["ack_lost"] == 3


def test_a_producer_follows_a_leader_that_moves(broker: DevBroker) -> None:
    for partition in range(PARTITIONS):
        broker.move_leader("hits", partition, 1)
    first, second = numbered(200)[:100], numbered(200)[100:]
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap.split(","), retry_backoff_ms=20)
    try:
        for value in first:
            producer.send("hits", value=value).get(READ_WITHIN)
        for partition in range(PARTITIONS):
            broker.move_leader("hits", partition, 2, stale=1)
        for value in second:
            producer.send("hits", value=value).get(READ_WITHIN)
    finally:
        producer.close()
    assert values_of(broker) == Counter(first + second)


def test_an_admin_client_creates_topics(broker: DevBroker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap.split(","))
    try:
        admin.create_topics([NewTopic("made", 4, 1)])
    finally:
        admin.close()
    assert broker.fetch("made") == [[], [], [], []]
    broker.delete_topic("made")


def test_an_admin_adds_partitions_and_cannot_remove_any(broker: DevBroker) -> None:
    broker.add_topic("grows", 2)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap.split(","))
    try:
        admin.create_partitions({"grows": NewPartitions(9)}, validate_only=True)
        assert len(broker.fetch("grows")) == 2
        admin.create_partitions({"grows": NewPartitions(5)})
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({"grows": NewPartitions(5)})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.create_partitions({"nowhere": NewPartitions(5)})
        [described] = admin.describe_topics(["grows"])
    finally:
        admin.close()
    assert len(described["partitions"]) == len(broker.fetch("grows")) == 5
    broker.delete_topic("grows")
