"""Stalls on `/healthz` and `/metrics`: nothing has been acknowledged for a while although messages wait.

A broker is stalled if it acknowledges nothing for any partition; then its partitions are not listed. A stalled
partition is listed if its broker acknowledges messages of other partitions, or if the partition has no leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS, CONNECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.telemetry.broker_status import BrokerStatus
    from bruce_mp.telemetry.stalls import PartitionStall

__all__ = ["BrokerStall", "Stalls", "find_stalls", "partition_text"]


class BrokerStall(NamedTuple):
    """A broker that has acknowledged nothing since `since_ms` of the steady clock, with its waiting messages."""

    status: BrokerStatus
    since_ms: int
    message_count: int
    partition_count: int
    reason: str


class Stalls(NamedTuple):
    """The stalled brokers, sorted by node number, and the other stalled partitions, the longest stall first."""

    brokers: list[BrokerStall]
    partitions: list[PartitionStall]

    def __bool__(self) -> bool:
        return bool(self.brokers or self.partitions)

    @property
    def message_count(self) -> int:
        """The number of messages that wait for the stalled brokers and partitions."""
        return sum(each.message_count for each in self.brokers) + sum(each.message_count for each in self.partitions)


def find_stalls(cluster: ClusterReport, now_ms: int, min_duration_ms: int) -> Stalls:
    """Find the stalls that have lasted for at least `min_duration_ms`. `now_ms` is the steady clock."""
    long_stalls = [stall for stall in cluster.stalls if now_ms - stall.since_ms >= min_duration_ms]
    candidates = [
        _broker_stall(status, [stall for stall in long_stalls if stall.node == status.node], cluster)
        for status in sorted(cluster.brokers.values(), key=lambda status: status.node)
    ]
    stalled_brokers = [
        stall for stall in candidates if stall.message_count and now_ms - stall.since_ms >= min_duration_ms
    ]
    stalled_nodes = {stall.status.node for stall in stalled_brokers}
    return Stalls(stalled_brokers, [stall for stall in long_stalls if stall.node not in stalled_nodes])


def _broker_stall(status: BrokerStatus, stalls: Sequence[PartitionStall], cluster: ClusterReport) -> BrokerStall:
    # The stall begins with the last acknowledgement, or later, when the first message began to wait.
    since_ms = max(status.acked_ms, min((stall.since_ms for stall in stalls), default=0))
    message_count = sum(stall.message_count for stall in stalls)
    return BrokerStall(status, since_ms, message_count, len(stalls), _reason(status, stalls, cluster))


def _reason(status: BrokerStatus, stalls: Iterable[PartitionStall], cluster: ClusterReport) -> str:
    if status.connection != CONNECTED:
        return f"{status.connection}. {status.last_error}".rstrip()
    errors = sorted({cluster.last_errors.get((stall.topic, stall.partition), "") for stall in stalls} - {""})
    return f"it answers {', '.join(errors)}." if errors else "it does not answer."


def partition_text(topic: bytes, partition: int) -> str:
    """Return the name of a partition, or the name of the topic if `partition` is `ALL_PARTITIONS`."""
    if not topic:  # a stall of messages that came before the first metadata
        return "all topics"
    return topic_text(topic) if partition == ALL_PARTITIONS else f"{topic_text(topic)}-{partition}"
