"""The cluster as the router sees it: a frozen picture made from one metadata answer.

Partitions without a leader stay known, so that a partition key keeps its partition through an outage.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka_types import ClusterMetadata, TopicMetadata

__all__ = ["Address", "ClusterView", "TopicView", "view_of"]


class Address(Struct, frozen=True):
    """Where a broker is."""

    host: str
    port: int


class TopicView(Struct, frozen=True):
    """A topic: its partitions in ascending order, and the leaders of those that are available."""

    partitions: tuple[int, ...]
    leaders: dict[int, int]

    def spread(self, known: int) -> int:
        """Return the number of partitions that keys are spread over, of which `known` were in use before.

        A new partition counts from its first leader on.  Before that another would stand in for it, and there the
        messages of two lanes pass each other.
        """
        count = len(self.partitions)
        if not 0 < known < count:
            return count
        led = takewhile(self.leaders.__contains__, self.partitions[known:])
        return known + sum(1 for _ in led)

    def designated(self, index: int) -> int | None:
        """The partition for the index of a partition key: that one, or the next available one; None = none is."""
        count = len(self.partitions)
        for step in range(count):
            partition = self.partitions[(index + step) % count]
            if partition in self.leaders:
                return partition
        return None


class ClusterView(Struct, frozen=True):
    """Brokers and topics.  Two views are equal when nothing differs that matters to routing.

    `forbidden` are topics that somebody wants and that brokers hide from us, whether they exist or not.
    """

    brokers: dict[int, Address]
    topics: dict[bytes, TopicView]
    forbidden: frozenset[bytes] = frozenset()

    @property
    def in_service(self) -> frozenset[int]:
        """The brokers that lead an available partition."""
        return frozenset(leader for topic in self.topics.values() for leader in topic.leaders.values())


def view_of(metadata: ClusterMetadata, forbidden: frozenset[bytes] = frozenset()) -> ClusterView:
    """The view of a metadata answer; `forbidden` are the topics that brokers hide from us.

    Only an error that says so makes a topic unknown; with any other it is there, and may have no leaders just now.
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
