"""Null and empty keys and values through the whole daemon, by every input: read back as the clients sent them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient, StreamClient
from bruce_mp.devbroker.control import DevBroker
from support.put_records import NULL_AND_EMPTY
from support.read_back import records_in
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.client import Client
    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

TOPIC: Final = "tombstones"
ROUNDS: Final = 4
"""Datagrams, a stream, a fenced attempt, and datagrams that are in the slab when all processes are killed."""


def send_all(client: Client) -> None:
    for key, value in NULL_AND_EMPTY:
        client.send(TOPIC, value, key, keep_empty=True)


def deliver(directory: Path, broker: DevBroker | KafkaCluster, empty_values: str) -> None:
    with daemon_in(directory, broker, **ONE_WORKER, **{"kafka.empty_values": empty_values}) as daemon:
        with DatagramClient(daemon.socket_path, timeout=30) as datagrams:
            send_all(datagrams)
        with StreamClient(daemon.stream_path, timeout=30) as stream:
            send_all(stream)
            with stream.attempt("fenced"):
                send_all(stream)
            assert stream.flush(timeout=30).delivered == 2 * len(NULL_AND_EMPTY)
        with DatagramClient(daemon.socket_path, timeout=30) as datagrams:
            send_all(datagrams)
        daemon.wait_received(ROUNDS * len(NULL_AND_EMPTY))
        daemon.kill_all()
        daemon.start()
        books = daemon.wait_settled(ROUNDS * len(NULL_AND_EMPTY))
        assert books.received == books.delivered == ROUNDS * len(NULL_AND_EMPTY)
        assert daemon.terminate() == 0


def test_null_and_empty_reach_the_embedded_broker_as_sent(tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={TOPIC: 2}, strict=True) as broker:
        deliver(tmp_path, broker, "empty")
        found = [(record.key, record.value) for record in records_in(broker, TOPIC)]
    assert Counter(found) == dict.fromkeys(NULL_AND_EMPTY, ROUNDS)


def test_null_and_empty_reach_kafka_as_sent(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    kafka_3.create_topic(TOPIC, 2, 3)
    deliver(tmp_path, kafka_3, "null")
    found = [(record.key, record.value) for records in kafka_3.read_all(TOPIC).values() for record in records]
    assert Counter(found) == dict.fromkeys(NULL_AND_EMPTY, ROUNDS)
