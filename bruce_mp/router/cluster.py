"""The router's view of the cluster, built from a metadata response and from known topics that the response lacks.

A partition without a leader stays in the view, so that each partition key still belongs to the same partition after an
outage.

Topics that are missing from a response get a grace period (`MissingTopics`), because a restarted broker responds before
it knows all topics (seen on Kafka 4 in KRaft mode).  A router that trusted such a response would discard all queued
messages of the missing topics.  So a known topic stays known, without leaders, until all responses of its grace period
lack the topic; its messages wait during that period.  A *forbidden* topic is a topic that the daemon's Kafka user may
not see: brokers report it only in response to a request by name.  If a known topic becomes forbidden, it stays known
even after the grace period.

A topic with fewer partitions than before gets the same grace period.  Kafka never removes single partitions: either the
broker does not know of an increase yet, or the topic was deleted and created again.  AnyPartition messages go to the
partitions that have a leader in the response.  The partitions that the response lacks stay in the view without leaders,
so PartitionKey messages wait.  A partition is *lost* if all responses of a grace period have the topic without it.  The
router treats its record batches like those of a deleted topic, and routes its unsent messages to other partitions.
Other PartitionKey messages of the topic wait until no lost partition has a route: a dispatcher may still hold older
messages of their keys.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata, TopicMetadata

__all__ = ["Address", "ClusterView", "MissingPartitions", "MissingTopics", "TopicView", "view_of"]

MISSING_GRACE_MS: Final = 10_000
"""The grace period of a topic if metadata lacks the topic or some of its partitions."""
_UNKNOWN_TOPIC_ERRORS: Final = frozenset({3, 17, 29, 100})
"""UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID"""


class Address(Struct, frozen=True):
    host: str
    port: int


class TopicView(Struct, frozen=True):
    """A topic's partitions in ascending order, and the leader (a broker id) of each partition that has a leader.

    `is_partial` is True if the response lacks some of the partitions.  No other partition may get the keys of these.
    """

    partitions: tuple[int, ...]
    leaders: dict[int, int]
    is_partial: bool = False

    def lacks_below(self, count: int) -> bool:
        """Return True if the topic lacks one of the partitions below `count`, which is at least 1."""
        return self.partitions[count - 1 : count] != (count - 1,)  # they ascend, so another one is after a gap

    def key_partition_count(self, known_count: int, *, keys_wait: bool = False) -> int:
        """Return the number of partitions over which inputs spread keys.

        `known_count` is the previous result, 0 for a new topic.  A new partition is counted once it has a leader:
        earlier, another partition would replace it, and would get the messages of two lanes, one for each key index.
        If `keys_wait` is True, no partition replaces another, so all are counted.
        """
        partition_count = len(self.partitions)
        if keys_wait or not 0 < known_count < partition_count:
            return partition_count
        new_with_leader = takewhile(self.leaders.__contains__, self.partitions[known_count:])
        return known_count + len(list(new_with_leader))

    def key_partitions(self, *, keys_wait: bool = False) -> list[int]:
        """Return the partition for each key index (key modulo partitions).

        Return [] if no partition has a leader or the view is partial.  A partition without a leader is replaced by the
        next partition with a leader (after the last partition comes the first), unless `keys_wait` is True.
        """
        replacement = next(filter(self.leaders.__contains__, self.partitions), None)
        if replacement is None or self.is_partial:
            return []
        if keys_wait:
            return list(self.partitions)
        reversed_result = []
        for partition in reversed(self.partitions):
            replacement = partition if partition in self.leaders else replacement
            reversed_result.append(replacement)
        return reversed_result[::-1]


class ClusterView(Struct, frozen=True):
    """Brokers and topics.  Two views are equal if they lead to the same routing.

    `forbidden` has the names of topics that brokers refuse to describe to the daemon's Kafka user.  A broker also gives
    this answer for a name without a topic.
    """

    brokers: dict[int, Address]
    topics: dict[bytes, TopicView]
    forbidden: frozenset[bytes] = frozenset()

    @property
    def leading_brokers(self) -> frozenset[int]:
        """The brokers that lead at least one partition."""
        return frozenset[int]().union(*(topic.leaders.values() for topic in self.topics.values()))


def view_of(metadata: ClusterMetadata, forbidden: frozenset[bytes] = frozenset()) -> ClusterView:
    """Build the view of a metadata response; for `forbidden`, see `ClusterView`.

    Topics with an error in `_UNKNOWN_TOPIC_ERRORS` are left out.  A topic with another error exists.
    """
    return ClusterView(
        brokers={node: Address(broker.host, broker.port) for node, broker in metadata.brokers.items()},
        topics={
            name: _topic_view(topic)
            for name, topic in metadata.topics.items()
            if topic.error not in _UNKNOWN_TOPIC_ERRORS
        },
        forbidden=forbidden,
    )


def _topic_view(topic: TopicMetadata) -> TopicView:
    return TopicView(
        partitions=tuple(sorted(topic.partitions)),
        leaders={number: partition.leader for number, partition in topic.partitions.items() if partition.is_available},
    )


class MissingTopics:
    """The known topics that are in the last metadata without some of their partitions, or not at all.

    Times are in ms on a steady clock.
    """

    def __init__(self) -> None:
        self._missing_since_ms: dict[bytes, int] = {}
        """The start of each topic's grace period, by name."""

    @property
    def names_to_request(self) -> Iterable[bytes]:
        return self._missing_since_ms.keys()

    def keep_for_grace_period(
        self, view: ClusterView, partition_counts: Mapping[bytes, int], counts_in_use: Mapping[bytes, int], now_ms: int
    ) -> ClusterView:
        """Return `view` of a response, with the missing topics added that are in their grace period or forbidden.

        `partition_counts` has the number of partitions of each known topic.  `counts_in_use` has the number of
        partitions up to the last one with a route: a topic that exists stays partial while it has fewer.
        """
        counts = {name: max(count, counts_in_use.get(name, 0)) for name, count in partition_counts.items()}
        missing = [name for name, count in counts.items() if _lacks_partitions(view, name, count)]
        self._missing_since_ms = {name: self._missing_since_ms.get(name, now_ms) for name in missing}
        kept = {
            name: TopicView(tuple(range(counts[name])), _leaders_in(view, name), is_partial=True)
            for name, since_ms in self._missing_since_ms.items()
            if now_ms - since_ms < MISSING_GRACE_MS
            or name in view.forbidden
            or (name in view.topics and _lacks_partitions(view, name, counts_in_use.get(name, 0)))
        }
        return ClusterView(view.brokers, {**view.topics, **kept}, view.forbidden) if kept else view


class MissingPartitions:
    """The partitions with routes that the last metadata lacks, although it has their topics."""

    def __init__(self) -> None:
        self._missing_since_ms: dict[tuple[int, int], int] = {}
        """The start of each partition's grace period, by topic number and partition."""

    def find_lost(self, missing: Iterable[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
        """Return the lost ones of the partitions that are missing in new metadata; their grace period has ended."""
        self._missing_since_ms = {key: self._missing_since_ms.get(key, now_ms) for key in missing}
        return [key for key, since_ms in self._missing_since_ms.items() if now_ms - since_ms >= MISSING_GRACE_MS]


def _lacks_partitions(view: ClusterView, name: bytes, count: int) -> bool:
    """Return True if a view has a topic with fewer than `count` partitions, or not at all."""
    return name not in view.topics or len(view.topics[name].partitions) < count


def _leaders_in(view: ClusterView, name: bytes) -> dict[int, int]:
    return view.topics[name].leaders if name in view.topics else {}
