"""Cluster state: brokers, topics, leaders, and the metadata about them.

All brokers share the logs, so moving a leader or stopping a broker loses no records. Clients see every broker as an
in-sync replica. While its leader is down, a partition has none for clients, until `move_leader` or the leader's return.

Metadata responses come from a `View`, an immutable snapshot. A command may keep an old snapshot for a number of
responses (`freeze`), which simulates a broker that has not learned of the change.

The numbers after RefusedError in docstrings are Kafka's error codes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid4

from bruce_mp.devbroker.batch import LogLimits
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.log import PartitionLog, Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_LEADER", "Cluster", "HostedTopic", "Node", "Partition", "PartitionView", "TopicSnapshot", "View"]

NO_LEADER: Final = -1
ANY_EPOCH: Final = -1  # the client sends no leader epoch
FIRST_PRODUCER_ID: Final = 1000  # not 0, so that a test can tell a granted id from a default
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class Node(NamedTuple):
    """A broker that clients can reach."""

    id: int
    host: str
    port: int


class PartitionView(NamedTuple):
    """Metadata of a partition: broker id of its leader, or `NO_LEADER`, and leader epoch."""

    leader: int
    epoch: int


class TopicSnapshot(NamedTuple):
    """Metadata of a topic; partitions by number."""

    name: str
    id: UUID
    partitions: tuple[PartitionView, ...]


class View(NamedTuple):
    """Metadata of the cluster at one moment."""

    nodes: tuple[Node, ...]
    topics: Mapping[str, TopicSnapshot]


@dataclass(slots=True)
class Partition:
    """A log, its leader's broker id, and the leader epoch, which each change of leader increments."""

    log: PartitionLog
    leader: int
    epoch: int = 0


@dataclass(slots=True)
class HostedTopic:
    """A topic: its name, Kafka's id, and its partitions by number."""

    name: str
    id: UUID
    partitions: list[Partition] = field(default_factory=list)


class Cluster:
    """State of the embedded brokers. Broker ids are 1 to `brokers`; a broker is down until `register`."""

    def __init__(
        self,
        brokers: int,
        *,
        max_bytes: int,
        auto_create: int = 0,
        limits: LogLimits | None = None,
        cluster_id: str = "bruce-dev-broker",
    ) -> None:
        self.ids = range(1, brokers + 1)
        self.id = cluster_id
        self.auto_create = auto_create
        """Partitions of a topic that a Metadata request creates; 0 disables that."""
        self.limits = limits or LogLimits()
        self.retention = Retention(max_bytes)
        self.topics: dict[str, HostedTopic] = {}
        self._nodes: dict[int, Node] = {}
        self._producer_ids = count(FIRST_PRODUCER_ID)
        self._leaders_chosen = 0
        self._frozen: View | None = None
        self._frozen_responses = 0
        self._view: View | None = None
        """The present snapshot; None after a change."""

    # --- topics

    def add_topic(self, name: str, partitions: int) -> HostedTopic:
        """Create a topic; leaders are assigned round-robin over the brokers, across topics.

        Raise RefusedError for an invalid name or number of partitions, and for a topic that exists.
        """
        self.check_new_topic(name, partitions)
        topic = HostedTopic(name, uuid4())
        topic.partitions = [Partition(PartitionLog(self.retention), self._choose_leader()) for _ in range(partitions)]
        self.topics[name] = topic
        self._view = None
        return topic

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raise RefusedError as `add_topic` does, and create nothing."""
        check_topic_name(name)
        if name in self.topics:
            raise RefusedError(Code.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")
        if partitions < 1:
            text = f"Topic {name!r} needs at least one partition, not {partitions}."
            raise RefusedError(Code.INVALID_PARTITIONS, text)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a topic's number of partitions; the new leaders go round-robin as in `add_topic`.

        Raise RefusedError for an unknown topic, and for one with at least so many partitions.
        """
        existing = self.check_growth(name, partitions)
        added = range(len(existing), partitions)
        existing += [Partition(PartitionLog(self.retention), self._choose_leader()) for _ in added]
        self._view = None

    def check_growth(self, name: str, partitions: int) -> list[Partition]:
        """Return the topic's list of partitions, to be extended. Raise RefusedError as `add_partitions` does."""
        found = self.topic(name).partitions
        if partitions <= len(found):
            text = f"Topic {name!r} has {len(found)} partitions already, and cannot be changed to {partitions}."
            raise RefusedError(Code.INVALID_PARTITIONS, text)
        return found

    def delete_topic(self, name: str) -> None:
        for partition in self.topic(name).partitions:
            partition.log.clear()
        del self.topics[name]
        self._view = None

    def topic(self, name: str) -> HostedTopic:
        """Return a topic. Raise RefusedError (3) for an unknown name."""
        try:
            return self.topics[name]
        except KeyError:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.") from None

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition. Raise RefusedError (3) for an unknown one."""
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} has no partition {index}.")
        return partitions[index]

    def partition_led_by(self, broker: int, name: str, index: int, epoch: int = ANY_EPOCH) -> Partition:
        """Return the partition if `broker` leads it and the client's leader epoch, if sent, is current.

        Raise RefusedError: 3, 6, 74 (the client's epoch is old) or 75 (it is newer than ours).
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
        """Return an id that no producer has."""
        return next(self._producer_ids)

    # --- brokers and leaders

    def register(self, broker: int, host: str, port: int) -> None:
        self._nodes[self.check_id(broker)] = Node(broker, host, port)
        self._view = None

    def unregister(self, broker: int, *, elect: bool = False) -> None:
        """Unregister `broker`. With `elect`, its partitions get live leaders, round-robin; else they wait for it."""
        self._nodes.pop(self.check_id(broker), None)
        for topic in self.topics.values() if elect else ():
            for partition in topic.partitions:
                if partition.leader == broker:
                    self._set_leader(partition, self._choose_leader())
        self._view = None

    def move_leader(self, name: str, index: int, broker: int) -> None:
        """Make `broker` the leader of the partition, in a new leader epoch."""
        self._set_leader(self.partition(name, index), self.check_id(broker))
        self._view = None

    def check_id(self, broker: int) -> int:
        """Return the id `broker`. Raise RefusedError (42) if no such broker exists."""
        if broker not in self.ids:
            raise RefusedError(Code.INVALID_REQUEST, f"There is no broker {broker}; there are 1 to {len(self.ids)}.")
        return broker

    # --- metadata

    def view(self) -> View:
        if self._view is None:
            nodes = tuple(self._nodes[broker] for broker in sorted(self._nodes))
            self._view = View(nodes, {topic.name: self._view_of(topic) for topic in self.topics.values()})
        return self._view

    def freeze(self, responses: int) -> None:
        """Use the current snapshot for the next `responses` calls of `next_view`, regardless of later changes."""
        self._frozen, self._frozen_responses = self.view(), responses

    def next_view(self) -> View:
        """Return the snapshot for one Metadata response."""
        if self._frozen is None or self._frozen_responses == 0:
            return self.view()
        self._frozen_responses -= 1
        return self._frozen

    def _view_of(self, topic: HostedTopic) -> TopicSnapshot:
        partitions = (
            PartitionView(p.leader if p.leader in self._nodes else NO_LEADER, p.epoch) for p in topic.partitions
        )
        return TopicSnapshot(topic.name, topic.id, tuple(partitions))

    def _set_leader(self, partition: Partition, broker: int) -> None:
        partition.leader = broker
        partition.epoch += 1

    def _choose_leader(self) -> int:
        candidates = sorted(self._nodes) or self.ids  # topics may exist before any broker is up
        broker = candidates[self._leaders_chosen % len(candidates)]
        self._leaders_chosen += 1
        return broker


def check_topic_name(name: str) -> None:
    """Raise RefusedError (17) for a name that Kafka refuses."""
    if not TOPIC_NAME.fullmatch(name):
        text = f"{name!r} is not a topic name: 1 to 249 of the letters a-z, A-Z, digits, '.', '_' and '-'."
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, text)
