"""The whole daemon against real Kafka brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import Daemon
from support.read_back import read_back_kafka
from support.traffic import Load, assert_all_there, start_senders

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

PARTITIONS = 4


def make_topics(cluster: KafkaCluster, prefix: str, count: int, replication: int = 1) -> tuple[str, ...]:
    topics = tuple(f"{prefix}-{number}" for number in range(count))
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS, replication)
    return topics


def run_load(load: Load, daemon: Daemon, timeout: float) -> None:
    """Send a load and wait until the daemon has delivered all of it."""
    for sender in start_senders(load, daemon.socket_path):
        assert sender.wait(timeout) == 0
    books = daemon.wait_settled(load.total, timeout)
    assert books.received == books.delivered == load.total


@pytest.mark.parametrize("messages", [2_500, pytest.param(50_000, marks=pytest.mark.soak)])
def test_three_brokers_store_all_datagrams_of_four_senders_once_and_in_order(
    tmp_path: Path, kafka_3: KafkaCluster, messages: int
) -> None:
    """20 topics, 4 senders, 10 B to 60 KB: none lost, none doubled, in order; key, timestamp and value intact."""
    load = Load(make_topics(kafka_3, f"many-{messages}", 20), senders=4, messages=messages, largest=60_000)
    with Daemon(tmp_path, kafka_3.bootstrap, {"input.unix_datagram.when_full": "block"}) as daemon:
        run_load(load, daemon, timeout=300)
        assert daemon.terminate() == 0
    assert_all_there(load, read_back_kafka(kafka_3, load.topics))
