"""Clients with wrong clocks: Kafka refuses none of their messages and deletes none right after the ack."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bruce_mp.client import Client, DatagramClient, StreamClient, TcpClient
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.telemetry.counters import Counter
from support.kafka_dist import NEWEST
from support.read_back import broker_fixture, records_in
from support.stream_inputs import daemon_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker
    from support.daemon import Daemon
    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

TOPIC: Final = "clocks"
HOUR_MS: Final = 3_600_000
DEFAULT: Final = {"timestamps.policy": "clamp"}
KEPT: Final[Mapping[str, Callable[[int], int]]] = {
    "now": lambda now: now,
    "half an hour ago": lambda now: now - HOUR_MS // 2,
    "a minute ahead": lambda now: now + 60_000,
}
WRONG: Final[Mapping[str, Callable[[int], int]]] = {
    "seconds": lambda now: now // 1000,
    "zero": lambda _: 0,
    "none": lambda _: -1,
    "the old Java example": lambda _: 12345,
    "the old PHP client": lambda now: now - 2**32,
    "microseconds": lambda now: now * 1000,
    "two hours ahead": lambda now: now + 2 * HOUR_MS,
    "the least": lambda _: -(2**63),
    "the greatest": lambda _: 2**63 - 1,
}
CLOCKS: Final = {**KEPT, **WRONG}
INPUTS: Final = ("datagram", "stream", "tcp")
RETENTION: Final = {"retention.ms": str(HOUR_MS)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_from_all_clocks(daemon: Daemon, topics: Sequence[str] = (TOPIC,)) -> dict[bytes, int]:
    """Send a message of each clock by each input, to these topics in turn; return the timestamps by value."""
    clients: dict[str, Client] = {
        "datagram": DatagramClient(daemon.socket_path, timeout=30),
        "stream": StreamClient(daemon.stream_path, timeout=30),
        "tcp": TcpClient(daemon.tcp_port, timeout=30),
    }
    sent: dict[bytes, int] = {}
    with ExitStack() as stack:
        for kind, client in clients.items():
            stack.enter_context(client)
            for topic, (name, clock) in zip(cycle(topics), CLOCKS.items(), strict=False):
                value = f"{kind}: {name}".encode()
                sent[value] = clock(now_ms())
                client.send(topic, value, timestamp_ms=sent[value])
    return sent


def assert_near_arrival(sent: Mapping[bytes, int], found: Mapping[bytes, int], began_ms: int) -> None:
    """Check that every message arrived; good timestamps are unchanged, the others are the time of arrival."""
    assert found.keys() == sent.keys()
    for value, timestamp in sent.items():
        if value.split(b": ")[1].decode() in KEPT:
            assert found[value] == timestamp, value
        else:
            assert began_ms <= found[value] <= now_ms(), value


def in_broker(broker: DevBroker, topic: str = TOPIC) -> dict[bytes, int]:
    return {record.value or b"": record.timestamp for record in records_in(broker, topic)}


def in_kafka(cluster: KafkaCluster, topics: Sequence[str]) -> dict[bytes, int]:
    found = [records for topic in topics for records in cluster.read_all(topic).values()]
    return {record.value or b"": record.timestamp for records in found for record in records}


# --- the embedded broker ----------------------------------------------------------------------------------------------
broker = broker_fixture(topics={TOPIC: 2})


def test_a_message_from_a_wrong_clock_gets_its_arrival_time(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **DEFAULT) as daemon:
        began_ms = now_ms()
        sent = send_from_all_clocks(daemon)
        books = daemon.wait_settled(len(sent))
        assert books.received == books.delivered == len(sent)
        assert_near_arrival(sent, in_broker(broker), began_ms)
        assert daemon.counted(Counter.InputAgentReplaceTimestamp) == len(WRONG) * len(INPUTS)
        wrong = f'bruce_replaced_timestamps_total{{because="outside_window"}} {len(WRONG) * len(INPUTS)}'
        assert wrong in daemon.get_text("/metrics")


def test_the_timestamp_warning_names_the_sending_process_on_every_input(tmp_path: Path, broker: DevBroker) -> None:
    me = f"process {os.getpid()} ("
    with daemon_in(tmp_path, broker, **DEFAULT) as daemon:
        with StreamClient(daemon.stream_path, timeout=30) as client:
            client.send(TOPIC, b"stream", timestamp_ms=12345)
        daemon.wait_for(lambda: me in daemon.log(), "the warning about a stream", 20)
        assert 'set timestamps.topics."clocks" = "client"' in daemon.log()
        count = 1

        def is_named() -> bool:
            nonlocal count
            daemon.send(TOPIC, b"datagram", timestamp_ms=54321)
            count += 1
            return any(me in line and "such as 54321" in line for line in daemon.log().splitlines())

        daemon.wait_for(is_named, "the warning about a datagram", 20)
        assert daemon.wait_settled(count).delivered == count


def test_a_timestamp_policy_is_chosen_by_topic_and_input(tmp_path: Path, broker: DevBroker) -> None:
    for topic in ("as-sent", "as-arrived"):
        broker.add_topic(topic, 1)
    policies = {
        "input.unix_datagram.timestamps": "client",
        "input.streams.timestamps": "arrival",
        "timestamps.topics.as-sent": "client",
        "timestamps.topics.as-arrived": "arrival",
    }
    with daemon_in(tmp_path, broker, **DEFAULT, **policies) as daemon:
        began_ms = now_ms()
        old_ms = began_ms - 1000
        with (
            DatagramClient(daemon.socket_path, timeout=30) as datagrams,
            StreamClient(daemon.stream_path, timeout=30) as stream,
        ):
            for topic in (TOPIC, "as-sent", "as-arrived"):
                datagrams.send(topic, b"datagram", timestamp_ms=5)
                stream.send(topic, b"stream", timestamp_ms=old_ms)
        daemon.wait_settled(6)
        assert in_broker(broker, "as-sent") == {b"datagram": 5, b"stream": old_ms}
        assert all(stamp >= began_ms for stamp in in_broker(broker, "as-arrived").values())
        found = in_broker(broker)
        assert found[b"datagram"] == 5
        assert found[b"stream"] >= began_ms
        assert daemon.counted(Counter.InputAgentReplaceTimestamp) == 0


def test_a_reload_changes_the_policy(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon:
        daemon.send(TOPIC, b"before", timestamp_ms=5)
        daemon.wait_settled(1)
        daemon.reload({"timestamps.policy": "arrival"})
        daemon.send(TOPIC, b"behind", timestamp_ms=5)
        daemon.wait_settled(2)
        found = in_broker(broker)
        assert found[b"before"] == 5
        assert found[b"behind"] > now_ms() - HOUR_MS


def test_explicit_timestamps_are_kept_until_the_next_attempt(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **DEFAULT) as daemon:
        with StreamClient(daemon.stream_path, timeout=30) as client:
            with client.attempt("old", keep_timestamps=True):
                client.send(TOPIC, b"old", timestamp_ms=12345)
            with client.attempt("new"):
                client.send(TOPIC, b"new", timestamp_ms=12345)
            assert client.flush(30).delivered == 2
        found = in_broker(broker)
        assert found[b"old"] == 12345
        assert found[b"new"] > now_ms() - HOUR_MS


@pytest.mark.parametrize(("refusals", "delivered"), [(1, 1), (2, 0)])
def test_error_32_is_retried_once_with_the_arrival_time(
    tmp_path: Path, broker: DevBroker, refusals: int, delivered: int
) -> None:
    broker.inject(Fault(action=FaultAction.ERROR, code=32, topic=TOPIC, times=refusals))
    with daemon_in(tmp_path, broker) as daemon:
        began_ms = now_ms()
        daemon.send(TOPIC, b"ahead", timestamp_ms=began_ms + 2 * HOUR_MS)
        books = daemon.wait_settled(1)
        assert books.delivered == delivered
        assert all(began_ms <= stamp <= now_ms() for stamp in in_broker(broker).values())
        assert daemon.counted(Counter.ConnectorReplaceTimestamp) == 1


# --- Kafka ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def kafka(kafka_of: Callable[[str], KafkaCluster]) -> KafkaCluster:
    """Return a broker that checks for expired records twice a second."""
    return kafka_of(NEWEST)


def is_deleted(consumer: Consumer, topic: str, records: int) -> bool:
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    return bool(low >= records)


def wait_for_retention(daemon: Daemon, cluster: KafkaCluster, topic: str) -> None:
    """Wait until Kafka has deleted a new record with an old timestamp, after which it has checked older ones too."""
    cluster.create_topic(topic, config=RETENTION)
    producer = Producer(cluster.librdkafka_config)
    consumer = Consumer({**cluster.librdkafka_config, "group.id": "nobody"})
    try:
        for passes in (1, 2):  # two, because the order of topics in a pass is unknown
            producer.produce(topic, b"old", timestamp=12345)
            assert producer.flush(30) == 0
            daemon.wait_for(partial(is_deleted, consumer, topic, passes), "retention", 60)
    finally:
        consumer.close()


@pytest.mark.kafka
def test_kafka_accepts_and_keeps_messages_from_wrong_clocks(tmp_path: Path, kafka: KafkaCluster) -> None:
    topics = [f"clamped-{number}" for number in range(len(CLOCKS))]  # a good timestamp would protect its neighbours
    for topic in topics:
        kafka.create_topic(topic, config=RETENTION)
    with daemon_in(tmp_path, kafka, **DEFAULT) as daemon:
        began_ms = now_ms()
        sent = send_from_all_clocks(daemon, topics)
        books = daemon.wait_settled(len(sent))
        assert books.received == books.delivered == len(sent)
        for look in range(2):
            wait_for_retention(daemon, kafka, f"expired-{look}")
        assert_near_arrival(sent, in_kafka(kafka, topics), began_ms)


@pytest.mark.kafka
def test_messages_refused_under_policy_client_are_resent_with_the_arrival_time(
    tmp_path: Path, kafka: KafkaCluster
) -> None:
    kafka.create_topic("refused")
    refused = {"microseconds", "two hours ahead", "the greatest", "the least"}  # the last by an overflow in Kafka
    with daemon_in(tmp_path, kafka) as daemon:
        began_ms = now_ms()
        sent = send_from_all_clocks(daemon, ["refused"])
        books = daemon.wait_settled(len(sent))
        assert books.received == books.delivered == len(sent)
        found = in_kafka(kafka, ["refused"])
        assert found.keys() == sent.keys()
        for value, timestamp in sent.items():
            if value.split(b": ")[1].decode() in refused:
                assert began_ms <= found[value] <= now_ms(), value
            elif timestamp >= 0:  # librdkafka displays others differently
                assert found[value] == timestamp, value
        assert daemon.counted(Counter.ConnectorReplaceTimestamp) == len(refused) * len(INPUTS)
