"""Read back everything that arrived in Kafka, through librdkafka: another implementation than the one under test.

No consumer group takes part: the partitions are assigned by hand and read from their beginning to their end.  Checksums
are verified.  Control records of transactions are invisible; the end of a partition is where librdkafka says it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH: Final = 10_000
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
    """Milliseconds since the epoch; -1 where the record has none (message set v0)."""
    headers: tuple[tuple[str, bytes | None], ...] = ()


type_alias = dict[tuple[str, int], list[Record]]


@dataclass(slots=True)
class _Reading:
    records: dict[tuple[str, int], list[Record]]
    at_end: set[tuple[str, int]] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))

    @property
    def complete(self) -> bool:
        return len(self.at_end) == len(self.records)

    def take(self, message: Message) -> None:
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is None:
            self.at_end.discard(place)
            self.records[place].append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            self.at_end.add(place)
        else:
            raise KafkaException(error)
