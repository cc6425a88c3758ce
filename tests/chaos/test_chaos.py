"""Chaos on a real three-broker Kafka: see `support.chaos`.

A run is repeated with its seed: BRUCE_CHAOS_SEEDS="3 17" BRUCE_CHAOS_SECONDS=600 BRUCE_CHAOS_RATE=100 (messages per
second and sender).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from chaos.sender import load_of
from support.chaos import Chaos, check
from support.daemon import Daemon
from support.traffic import Seen

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

SEEDS = [int(word) for word in os.environ.get("BRUCE_CHAOS_SEEDS", "1 2 3").split()]
SECONDS = float(os.environ.get("BRUCE_CHAOS_SECONDS", "60"))
RATE = float(os.environ.get("BRUCE_CHAOS_RATE", "400"))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered(tmp_path: Path, kafka_3: KafkaCluster, seed: int) -> None:
    topics = tuple(f"chaos-{seed}-{number}" for number in range(4))
    for topic in topics:
        kafka_3.create_topic(topic, 3, 3, {"min.insync.replicas": "2"})
    load = load_of(topics)
    settings = {"delivery.kafka_socket_timeout_s": 3, "input.unix_datagram.when_full": "block"}
    with Daemon(tmp_path, kafka_3.bootstrap, settings) as daemon:
        chaos = Chaos(daemon, kafka_3, load, RATE, seed)
        outcome = chaos.run(SECONDS)
        received = outcome.received_before + daemon.books().received
    records = {
        topic: [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, some in sorted(kafka_3.read_all(topic).items())
            for record in some
        ]
        for topic in topics
    }
    print(f"seed {seed}: {received} messages; {', '.join(outcome.deeds)}")
    assert received > SECONDS * RATE / 4, f"Only {received} messages were received: there was hardly any traffic."
    check(load, outcome, received, records)
