"""A Kafka cluster in a few lines: logs, leaders, and the sequence checks of a real broker.

It shares no code with the embedded broker, so that two implementations of Kafka's rules check the daemon.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["BY_RECORD", "FakeCluster", "RequestBatch", "SentRecord"]

NOT_LEADER: Final = 6
OUT_OF_ORDER: Final = 45
OLD_EPOCH: Final = 47
INVALID_TIMESTAMP: Final = 32
INVALID_RECORD: Final = 87
BY_RECORD: Final = frozenset({INVALID_TIMESTAMP, INVALID_RECORD})
"""Codes with answers that may name records."""
REMEMBERED: Final = 5
MASK: Final = 0x7FFFFFFF

PartitionId = tuple[bytes, int]
"""Topic and partition."""


class SentRecord(NamedTuple):
    """A record in a request; `arrival` identifies its message."""

    arrival: int
    partition_key: int | None
    timestamp: int = 0


class RequestBatch(NamedTuple):
    """A batch as a broker reads it from a request; `base` is the sequence number of its first record."""

    topic: bytes
    partition: int
    epoch: int
    base: int
    records: tuple[SentRecord, ...]

    @property
    def partition_id(self) -> PartitionId:
        return self.topic, self.partition

    @property
    def span(self) -> tuple[int, int]:
        """First and last sequence number."""
        return self.base, (self.base + len(self.records) - 1) & MASK


@dataclass
class Partition:
    """A log and the state of the only producer."""

    log: list[SentRecord] = field(default_factory=list)
    epoch: int = -1
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def append(self, batch: RequestBatch) -> int:
        """Append a batch if it is in order; return the error code."""
        if batch.epoch >= 0:
            if batch.epoch == self.epoch and batch.span in self.recent:
                return 0
            if (code := self._check(batch)) != 0:
                return code
            if batch.epoch != self.epoch:
                self.recent.clear()
            self.epoch = batch.epoch
            self.recent.append(batch.span)
        self.log += batch.records
        return 0

    def _check(self, batch: RequestBatch) -> int:
        if self.epoch < 0:
            return 0  # an unknown producer may begin anywhere
        if batch.epoch < self.epoch:
            return OLD_EPOCH
        expected = 0 if batch.epoch > self.epoch else (self.recent[-1][1] + 1) & MASK
        return 0 if batch.base == expected else OUT_OF_ORDER


class FakeCluster:
    """All brokers share the logs, as if every follower were in sync."""

    def __init__(self, leaders: dict[PartitionId, int | None]) -> None:
        self.leaders = leaders
        self.partitions = {partition: Partition() for partition in leaders}
        self.poison: set[int] = set()
        """Arrival numbers of messages that every broker refuses."""
        self.latest_ms = 1 << 62
        """Latest timestamp that the brokers accept."""
        self.refused: dict[PartitionId, int] = {}
        """Partitions that refuse all writes, with their error code."""
        self.slow: dict[PartitionId, int] = {}
        """Partitions that append all writes and still answer with an error code."""

    def add(self, partition: PartitionId, leader: int | None) -> None:
        """Add a partition."""
        self.leaders[partition] = leader
        self.partitions[partition] = Partition()

    def produce(self, node: int, batch: RequestBatch) -> int:
        """Return the answer of broker `node` to a batch."""
        if self.leaders.get(batch.partition_id) != node:
            return NOT_LEADER
        refused = self.refused_records(batch)
        if refused:
            return INVALID_RECORD if batch.records[refused[0]].arrival in self.poison else INVALID_TIMESTAMP
        refusal = self.refused.get(batch.partition_id) or self.partitions[batch.partition_id].append(batch)
        return refusal or self.slow.get(batch.partition_id, 0)

    def refused_records(self, batch: RequestBatch) -> list[int]:
        """Return the positions in the batch of messages that the brokers refuse."""
        poisoned = [at for at, record in enumerate(batch.records) if record.arrival in self.poison]
        return poisoned or [at for at, record in enumerate(batch.records) if record.timestamp > self.latest_ms]

    def has(self, batch: RequestBatch) -> bool:
        """Return True if a batch was written."""
        partition = self.partitions[batch.partition_id]
        return batch.epoch == partition.epoch and batch.span in partition.recent

    def log(self, topic: bytes, partition: int) -> list[SentRecord]:
        """Return the records of a partition."""
        return self.partitions[topic, partition].log
