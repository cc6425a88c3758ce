"""The router's view of the cluster: a frozen value built from one metadata response.

Partitions without a leader stay known, so that a partition key keeps its partition through an outage.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata, TopicMetadata

__all__ = ["Address", "ClusterView", "TopicView", "view_of"]


class Address(Struct, frozen=True):
    """The host and port of a broker."""

    host: str
    port: int


class TopicView(Struct, frozen=True):
    """A topic's partitions in ascending order, and the leaders of the available ones.

    A partial view lacks the state of some partitions, so that no partition stands in for another.
    """

    partitions: tuple[int, ...]
    leaders: dict[int, int]
    is_partial: bool = False

    def spread(self, known: int) -> int:
        """Return the number of partitions that keys are spread over, of which `known` were in use before.

        A new partition counts once it has had a leader.  Before that another partition would stand in for it, and
        the messages of two lanes would pass each other there.
        """
        count = len(self.partitions)
        if not 0 < known < count:
            return count
        led = takewhile(self.leaders.__contains__, self.partitions[known:])
        return known + sum(1 for _ in led)

    def designated(self, index: int) -> int | None:
        """Return the partition for a key's index: that one, or the next available one.

        None if no partition is available, or if the view is partial.
        """
        if self.is_partial:
            return None
        count = len(self.partitions)
        for step in range(count):
            partition = self.partitions[(index + step) % count]
            if partition in self.leaders:
                return partition
        return None


class ClusterView(Struct, frozen=True):
    """Brokers and topics.  Two views are equal if they lead to the same routing.

    `forbidden` are topics that were requested by name and that the brokers hide from the daemon's user.  Such a topic
    may or may not exist.
    """

    brokers: dict[int, Address]
    topics: dict[bytes, TopicView]
    forbidden: frozenset[bytes] = frozenset()

    @property
    def in_service(self) -> frozenset[int]:
        """The brokers that lead an available partition."""
        return frozenset(leader for topic in self.topics.values() for leader in topic.leaders.values())


def view_of(metadata: ClusterMetadata, forbidden: frozenset[bytes] = frozenset()) -> ClusterView:
    """Build the view of a metadata response; `forbidden` are the topics that brokers hide from the daemon's user.

    Only the errors in `_UNKNOWN` make a topic unknown.  A topic with any other error exists, perhaps without leaders.
    """
    return ClusterView(
        brokers={node: Address(broker.host, broker.port) for node, broker in metadata.brokers.items()},
        topics={name: _topic_view(topic) for name, topic in metadata.topics.items() if topic.error not in _UNKNOWN},
        forbidden=forbidden,
    )


_UNKNOWN: Final = frozenset({3, 17, 29, 100})
"""UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID"""


def _topic_view(topic: TopicMetadata) -> TopicView:
    return TopicView(
        partitions=tuple(sorted(topic.partitions)),
        leaders={number: partition.leader for number, partition in topic.partitions.items() if partition.available},
    )
