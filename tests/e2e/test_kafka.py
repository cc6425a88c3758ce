"""The whole daemon against real Kafka brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import Daemon
from support.read_back import read_back_kafka
from support.traffic import Load, assert_all_there, deliver

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("unforked")]


@pytest.mark.parametrize(("topics", "messages"), [(8, 600), pytest.param(20, 50_000, marks=pytest.mark.soak)])
def test_three_brokers_store_all_datagrams_of_four_senders_once_and_in_order(
    tmp_path: Path, kafka_3: KafkaCluster, topics: int, messages: int
) -> None:
    """Many topics, 4 senders, 10 B to 60 KB: none lost, none doubled, in order; key, timestamp and value intact."""
    load = Load(tuple(f"many-{messages}-{number}" for number in range(topics)), 4, messages, largest=60_000)
    for topic in load.topics:
        kafka_3.create_topic(topic, partitions=4)
    with Daemon(tmp_path, kafka_3.bootstrap, {"input.unix_datagram.when_full": "block"}) as daemon:
        deliver(load, daemon, timeout=300)
        assert daemon.terminate() == 0
    assert_all_there(load, read_back_kafka(kafka_3, load.topics))
