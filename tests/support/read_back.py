"""Read the records of embedded or real brokers for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.traffic import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.devbroker.control import DevBroker
    from support.kafka_cluster import KafkaCluster

__all__ = ["read_back", "read_back_kafka"]


def read_back(broker: DevBroker, topics: Iterable[str]) -> dict[str, list[Seen]]:
    """Return the records of these topics by partition and in order."""
    return {
        topic: [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, records in enumerate(broker.fetch(topic))
            for record in records
        ]
        for topic in topics
    }


def read_back_kafka(cluster: KafkaCluster, topics: Iterable[str]) -> dict[str, list[Seen]]:
    """Return the records of these topics by partition and in order, read a topic at a time."""
    return {
        topic: [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, records in sorted(cluster.read_all(topic).items())
            for record in records
        ]
        for topic in topics
    }
