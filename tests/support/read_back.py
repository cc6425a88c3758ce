"""Embedded brokers as a fixture, and the records of embedded or real brokers for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from bruce_mp.devbroker.control import DevBroker
from support import processes
from support.traffic import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.devbroker.control import StoredRecord
    from support.kafka_cluster import KafkaCluster
    from support.kafka_reader import Record

__all__ = ["broker_fixture", "read_back", "read_back_kafka", "records_in", "values_in", "wait_for_records"]


def broker_fixture(*, scope: Literal["function", "module"] = "function", **options: Any) -> Any:
    """Return a fixture that yields a `DevBroker` with these options."""

    @pytest.fixture(scope=scope)
    def broker() -> Iterator[DevBroker]:
        with DevBroker(**options) as running:
            yield running

    return broker


def wait_for_records(broker: DevBroker, count: int, timeout: float = 60) -> None:
    """Wait until the broker has stored this number of records."""
    broker.wait_until(records=count, within=processes.time_limit(timeout))


def records_in(broker: DevBroker, topic: str) -> list[StoredRecord]:
    """Return the records of a topic, partition after partition."""
    return [record for records in broker.fetch(topic) for record in records]


def values_in(broker: DevBroker, topic: str) -> list[bytes]:
    """Return the values of a topic's records, partition after partition; empty bytes stand for null."""
    return [record.value or b"" for record in records_in(broker, topic)]


def read_back(broker: DevBroker, topics: Iterable[str]) -> dict[str, list[Seen]]:
    """Return the records of these topics by partition and in order."""
    return {topic: _seen(enumerate(broker.fetch(topic))) for topic in topics}


def read_back_kafka(cluster: KafkaCluster, topics: Iterable[str]) -> dict[str, list[Seen]]:
    """Return the records of these topics by partition and in order, read a topic at a time."""
    return {topic: _seen(sorted(cluster.read_all(topic).items())) for topic in topics}


def _seen(partitions: Iterable[tuple[int, Iterable[StoredRecord | Record]]]) -> list[Seen]:
    return [
        Seen(partition, record.key, record.value, record.timestamp)
        for partition, records in partitions
        for record in records
    ]
