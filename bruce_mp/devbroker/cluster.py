"""Cluster state: brokers, topics, leaders, and the metadata that clients see.

All brokers share the one log of a partition, so moving a leader or stopping a broker loses no records. Clients see
every broker as an in-sync replica. While the leader of a partition is down, clients see no leader, until the leader
returns or `move_leader` sets another one.

Metadata responses are made from an immutable `ClusterSnapshot`. `freeze` keeps the present snapshot for a number of
responses, to simulate brokers that have not learned of a change that follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

from bruce_mp.devbroker.batch import BatchCheckSettings
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.log import PartitionLog, Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "NO_LEADER",
    "Cluster",
    "ClusterSnapshot",
    "HostedTopic",
    "Node",
    "Partition",
    "PartitionSnapshot",
    "TopicSnapshot",
]

NO_LEADER: Final = -1
ANY_EPOCH: Final = -1  # Kafka's value in a request of a client that does not know the leader epoch
FIRST_PRODUCER_ID: Final = 1000  # not 0, so that a test can tell an id of this broker from a client's default value
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class Node(NamedTuple):
    """A broker that clients can reach."""

    id: int
    host: str
    port: int


class PartitionSnapshot(NamedTuple):
    """Metadata of a partition."""

    leader: int
    """Broker id, or `NO_LEADER` while the leader is down."""
    epoch: int
    """Leader epoch."""


class TopicSnapshot(NamedTuple):
    """Metadata of a topic. A partition's number is its index in `partitions`."""

    name: str
    id: UUID
    partitions: tuple[PartitionSnapshot, ...]


class ClusterSnapshot(NamedTuple):
    """Metadata of the cluster at one moment."""

    nodes: tuple[Node, ...]
    topics: Mapping[str, TopicSnapshot]
    """By topic name."""


@dataclass(slots=True)
class Partition:
    log: PartitionLog
    leader: int
    """Broker id, also while that broker is down."""
    epoch: int = 0
    """Leader epoch, which each change of the leader increments."""


@dataclass(slots=True)
class HostedTopic:
    """A topic. A partition's number is its index in `partitions`."""

    name: str
    id: UUID
    partitions: list[Partition] = field(default_factory=list)


class Cluster:
    """State of the embedded brokers, with the ids 1 to `broker_count`. A broker is down until `register` is called."""

    def __init__(
        self,
        broker_count: int,
        *,
        max_bytes: int,
        auto_create_partitions: int = 0,
        limits: BatchCheckSettings | None = None,
        cluster_id: str = "bruce-dev-broker",
    ) -> None:
        self.broker_ids = range(1, broker_count + 1)
        self.cluster_id = cluster_id
        self.auto_create_partitions = auto_create_partitions
        """Number of partitions of a topic that a Metadata request creates; 0 if such a request creates no topic."""
        self.limits = limits or BatchCheckSettings()
        self.retention = Retention(max_bytes)
        self.topics: dict[str, HostedTopic] = {}
        self._nodes: dict[int, Node] = {}  # by broker id, without the brokers that are down
        self._producer_ids = count(FIRST_PRODUCER_ID)
        self._chosen_leader_count = 0
        self._frozen: ClusterSnapshot | None = None
        self._frozen_responses_left = 0
        self._snapshot: ClusterSnapshot | None = None
        """Cache of `snapshot`; None after a change."""

    # --- topics

    def add_topic(self, name: str, partition_count: int) -> HostedTopic:
        """Create a topic with this number of partitions, and return it.

        The brokers that are up become leaders in turn, also across topics. Raise RefusedError if the name or the number
        is invalid, or if the topic exists.
        """
        self.check_new_topic(name, partition_count)
        topic = HostedTopic(name, uuid4())
        topic.partitions = [
            Partition(PartitionLog(self.retention), self._choose_leader()) for _ in range(partition_count)
        ]
        self.topics[name] = topic
        self._snapshot = None
        return topic

    def check_new_topic(self, name: str, partition_count: int) -> None:
        """Raise RefusedError if `add_topic` would, and create nothing."""
        check_topic_name(name)
        if name in self.topics:
            raise RefusedError(Code.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")
        if partition_count < 1:
            text = f"Topic {name!r} needs at least one partition, not {partition_count}."
            raise RefusedError(Code.INVALID_PARTITIONS, text)

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Increase a topic's number of partitions to `partition_count`. New leaders are chosen as in `add_topic`.

        Raise RefusedError if the topic is unknown, or has this number of partitions or more already.
        """
        existing = self.check_growth(name, partition_count)
        added = range(len(existing), partition_count)
        existing += [Partition(PartitionLog(self.retention), self._choose_leader()) for _ in added]
        self._snapshot = None

    def check_growth(self, name: str, partition_count: int) -> list[Partition]:
        """Raise RefusedError if `add_partitions` would. Return the topic's own list of partitions, to be extended."""
        found = self.topic(name).partitions
        if partition_count <= len(found):
            text = f"Topic {name!r} has {len(found)} partitions already, and cannot be changed to {partition_count}."
            raise RefusedError(Code.INVALID_PARTITIONS, text)
        return found

    def delete_topic(self, name: str) -> None:
        for partition in self.topic(name).partitions:
            partition.log.clear()
        del self.topics[name]
        self._snapshot = None

    def topic(self, name: str) -> HostedTopic:
        """Return the topic of this name. Raise RefusedError if there is none."""
        try:
            return self.topics[name]
        except KeyError:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.") from None

    def partition(self, name: str, index: int) -> Partition:
        """Return partition `index` of topic `name`. Raise RefusedError if there is none."""
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} has no partition {index}.")
        return partitions[index]

    def partition_led_by(self, broker: int, name: str, index: int, epoch: int = ANY_EPOCH) -> Partition:
        """Return the partition, for a request to `broker` with the leader epoch `epoch`.

        Raise RefusedError if the partition is unknown, if `broker` does not lead it, or if `epoch` is older or newer
        than the partition's leader epoch.
        """
        partition = self.partition(name, index)
        if partition.leader != broker:
            raise RefusedError(Code.NOT_LEADER_OR_FOLLOWER, f"Broker {broker} does not lead {name}-{index}.")
        if epoch not in (ANY_EPOCH, partition.epoch):
            is_old = epoch < partition.epoch
            code = Code.FENCED_LEADER_EPOCH if is_old else Code.UNKNOWN_LEADER_EPOCH
            raise RefusedError(code, f"The leader epoch of {name}-{index} is {partition.epoch}, not {epoch}.")
        return partition

    def new_producer_id(self) -> int:
        """Return an id that no producer has been given before."""
        return next(self._producer_ids)

    # --- brokers and leaders

    def register(self, broker: int, host: str, port: int) -> None:
        """Record that `broker` is up at this address. Raise RefusedError if no such broker exists."""
        self._nodes[self.check_broker_id(broker)] = Node(broker, host, port)
        self._snapshot = None

    def unregister(self, broker: int, *, elect: bool = False) -> None:
        """Record that `broker` is down. Raise RefusedError if no such broker exists.

        If `elect` is True, the partitions that `broker` leads get other leaders, as in `add_topic`. Otherwise `broker`
        remains their leader, so clients see no leader until it is up again.
        """
        self._nodes.pop(self.check_broker_id(broker), None)
        for topic in self.topics.values() if elect else ():
            for partition in topic.partitions:
                if partition.leader == broker:
                    self._set_leader(partition, self._choose_leader())
        self._snapshot = None

    def move_leader(self, name: str, index: int, broker: int) -> None:
        """Make `broker` the leader of the partition, in a new leader epoch."""
        self._set_leader(self.partition(name, index), self.check_broker_id(broker))
        self._snapshot = None

    def check_broker_id(self, broker: int) -> int:
        """Return `broker` itself. Raise RefusedError if no broker has this id."""
        if broker not in self.broker_ids:
            raise RefusedError(
                Code.INVALID_REQUEST, f"There is no broker {broker}; there are 1 to {len(self.broker_ids)}."
            )
        return broker

    # --- metadata

    def snapshot(self) -> ClusterSnapshot:
        """Return the present metadata, regardless of `freeze`."""
        if self._snapshot is None:
            nodes = tuple(self._nodes[broker] for broker in sorted(self._nodes))
            self._snapshot = ClusterSnapshot(
                nodes, {topic.name: self._snapshot_of(topic) for topic in self.topics.values()}
            )
        return self._snapshot

    def freeze(self, responses: int) -> None:
        """Use the present snapshot for the next `responses` Metadata responses, regardless of later changes.

        This replaces an earlier freeze, except that 0 responses change nothing.
        """
        if responses:
            self._frozen, self._frozen_responses_left = self.snapshot(), responses

    def unfreeze(self) -> None:
        """Use the present snapshot for the next Metadata response."""
        self._frozen_responses_left = 0

    def next_response_snapshot(self) -> ClusterSnapshot:
        """Return the snapshot for one Metadata response, and count this response if the metadata is frozen."""
        if self._frozen is None or self._frozen_responses_left == 0:
            return self.snapshot()
        self._frozen_responses_left -= 1
        return self._frozen

    def _snapshot_of(self, topic: HostedTopic) -> TopicSnapshot:
        partitions = (
            PartitionSnapshot(p.leader if p.leader in self._nodes else NO_LEADER, p.epoch) for p in topic.partitions
        )
        return TopicSnapshot(topic.name, topic.id, tuple(partitions))

    def _set_leader(self, partition: Partition, broker: int) -> None:
        partition.leader = broker
        partition.epoch += 1

    def _choose_leader(self) -> int:
        # Before the start no broker is up, but topics may be created: then each broker is a candidate.
        candidates = sorted(self._nodes) or self.broker_ids
        broker = candidates[self._chosen_leader_count % len(candidates)]
        self._chosen_leader_count += 1
        return broker


def check_topic_name(name: str) -> None:
    """Raise RefusedError if Kafka does not allow this name."""
    if not TOPIC_NAME.fullmatch(name):
        text = f"{name!r} is not a topic name: 1 to 249 of the letters a-z, A-Z, digits, '.', '_' and '-'."
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, text)
