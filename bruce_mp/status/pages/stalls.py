"""Stalls: brokers and partitions that acknowledge nothing for a while although messages wait for them.

The health page and `/metrics` show the same stalls. A broker is stalled if it acknowledges nothing at all;
its stall includes those of its partitions. A partition is listed separately if its broker acknowledges others, or if
the partition has no leader.
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
    """A broker that has acknowledged nothing since `since_ms`, with its waiting messages and the reason."""

    status: BrokerStatus
    since_ms: int
    messages: int
    partitions: int
    reason: str


class Stalls(NamedTuple):
    """The stalled brokers by node number, and all other stalled partitions, the oldest first."""

    brokers: list[BrokerStall]
    partitions: list[PartitionStall]

    def __bool__(self) -> bool:
        return bool(self.brokers or self.partitions)

    @property
    def messages(self) -> int:
        """The number of messages that wait for the stalled brokers and partitions."""
        return sum(each.messages for each in self.brokers) + sum(each.messages for each in self.partitions)


def find_stalls(cluster: ClusterReport, now_ms: int, after_ms: int) -> Stalls:
    """Find the stalls of at least `after_ms` at `now_ms` on the steady clock."""
    long_stalls = [stall for stall in cluster.stalls if now_ms - stall.since_ms >= after_ms]
    brokers = [
        _broker_stall(status, [stall for stall in long_stalls if stall.node == status.node], cluster)
        for status in sorted(cluster.brokers.values(), key=lambda status: status.node)
    ]
    stalled = [stall for stall in brokers if stall.messages and now_ms - stall.since_ms >= after_ms]
    nodes = {stall.status.node for stall in stalled}
    return Stalls(stalled, [stall for stall in long_stalls if stall.node not in nodes])


def _broker_stall(status: BrokerStatus, stalls: Sequence[PartitionStall], cluster: ClusterReport) -> BrokerStall:
    # Messages may have begun to wait after the last acknowledgement.
    since_ms = max(status.acked_ms, min((stall.since_ms for stall in stalls), default=0))
    messages = sum(stall.messages for stall in stalls)
    return BrokerStall(status, since_ms, messages, len(stalls), _reason(status, stalls, cluster))


def _reason(status: BrokerStatus, stalls: Iterable[PartitionStall], cluster: ClusterReport) -> str:
    if status.connection != CONNECTED:
        return f"{status.connection}. {status.last_error}".rstrip()
    errors = sorted({cluster.reasons.get((stall.topic, stall.partition), "") for stall in stalls} - {""})
    return f"it answers {', '.join(errors)}." if errors else "it does not answer."


def partition_text(topic: bytes, partition: int) -> str:
    """Return the name of a partition, or of a topic for messages without a partition."""
    if not topic:  # before the first metadata
        return "all topics"
    return topic_text(topic) if partition == ALL_PARTITIONS else f"{topic_text(topic)}-{partition}"
