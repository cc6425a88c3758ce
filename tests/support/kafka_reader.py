"""Read back everything that arrived in Kafka, through librdkafka: another implementation than the one under test.

No consumer group takes part: the partitions are assigned by hand and read from their beginning to their end.  Checksums
are verified.  The end of a partition is where librdkafka says it is, so control records of transactions do no harm.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PartitionId = tuple[str, int]
"""Topic and partition."""

BATCH: Final = 10_000
POLL_S: Final = 0.1
SETTINGS: Final = {
    "group.id": "nobody",  # demanded by the library, never used
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "check.crcs": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    "log_level": 0,
}


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    """Milliseconds since the epoch; 0 where the record has none (message set v0)."""
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(slots=True)
class _Reading:
    records: dict[PartitionId, list[Record]]
    at_end: set[PartitionId] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))

    def is_done(self, expected: int | None) -> bool:
        return len(self.at_end) == len(self.records) and self.count >= (expected or 0)

    def add(self, message: Message) -> None:
        place = (message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is None:
            self.at_end.discard(place)
            self.records[place].append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            self.at_end.add(place)
        else:
            raise KafkaException(error)


def read_topics(
    client: Mapping[str, Any], topics: Iterable[str], expected: int | None = None, timeout: float = 60.0
) -> dict[PartitionId, list[Record]]:
    """Read all records of all partitions of `topics` in offset order; `client` is librdkafka's configuration.

    With `expected` the reader waits for this number and still reads to the end, so a surplus record shows. Raises
    `AssertionError` with the numbers if the end is not reached within `timeout` seconds.
    """
    consumer = Consumer({**SETTINGS, **client, "error_cb": ignore_error})
    try:
        return _read(consumer, _partitions_of(consumer, topics, timeout), expected, timeout)
    finally:
        consumer.close()


def ignore_error(_error: KafkaError) -> None:
    """Ignore errors of brokers that are down; a real fault shows as missing records."""


def _partitions_of(consumer: Consumer, topics: Iterable[str], timeout: float) -> list[PartitionId]:
    return [
        (topic, partition)
        for topic in topics
        for partition in consumer.list_topics(topic, timeout=timeout).topics[topic].partitions
    ]


def _read(
    consumer: Consumer, partitions: list[PartitionId], expected: int | None, timeout: float
) -> dict[PartitionId, list[Record]]:
    deadline = time.monotonic() + timeout
    reading = _Reading({each: [] for each in partitions})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])
    while not reading.is_done(expected):
        if time.monotonic() > deadline:
            missing = sorted(set(partitions) - reading.at_end)
            raise AssertionError(
                f"{reading.count} of {expected or 'all'} records after {timeout:g} s; not read to the end: {missing}"
            )
        for message in consumer.consume(BATCH, POLL_S):
            reading.add(message)
    return reading.records


def _record(message: Message) -> Record:
    offset = message.offset()
    assert offset is not None
    # librdkafka returns pairs of a name and bytes; its type stubs name all that its producer accepts
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return Record(offset, message.key(), message.value(), message.timestamp()[1], tuple(headers))
