"""The brokers of a chaos run, real or embedded, and their faults.

A fault disturbs one broker at a time; a call of `repair_if_due` repairs it after some seconds. With real brokers, the
next fault waits until every replica is in sync, because otherwise Kafka itself may lose acknowledged records.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE, Action, ErrorRow
from support.read_back import read_back, read_back_kafka

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from support.kafka_cluster import KafkaCluster
    from support.traffic import Seen

__all__ = ["LEADER_PRESERVING", "PARTITIONS", "Embedded", "FaultKind", "Real", "Site", "WeightedFault"]

PARTITIONS: Final = 3
MOST_PARTITIONS: Final = 11
REPLICAS: Final = 3
MIN_IN_SYNC: Final = {"min.insync.replicas": "2"}
ALL_IN_SYNC: Final = {"min.insync.replicas": "3"}
STUCK_S: Final = (8.0, 16.0)
FOREIGN_S: Final = (4.0, 10.0)
"""Range of the time for which another cluster has the address."""
NOT_ENOUGH_REPLICAS: Final = 19
BROKEN: Final = (
    FaultAction.ACK_LOST,
    FaultAction.CLOSE,
    FaultAction.HALF_FRAME,
    FaultAction.WRONG_CORRELATION,
    FaultAction.GARBAGE_BODY,
    FaultAction.GARBAGE_FRAME,
    FaultAction.DELAY,
    FaultAction.SILENCE,
)


@unique
class FaultKind(Enum):
    """Kinds of faults; a run may exclude some."""

    BROKER = "a broker is killed, terminated or stopped"
    LEADER = "a partition is moved to another broker (real ones: 2.4 and later)"
    ANSWER = "requests are answered with errors, late, wrongly or not at all (embedded brokers)"
    PROCESS = "some or all of our processes are killed or stopped"
    GROWTH = "a topic gets more partitions"
    RESTART = "the daemon is terminated, which may remove the slab and its counters, and started again"
    STUCK = "one topic is refused for a time and fills a small slab"
    ATTACK = "attackers of the pages and streams run throughout"
    POWER = "the daemon is killed, and its slab is lost or torn; it keeps a journal"
    CLUSTER = "a broker of another cluster has the address of a broker, while all brokers are down (embedded brokers)"


LEADER_PRESERVING: Final = frozenset({FaultKind.PROCESS, FaultKind.RESTART, FaultKind.GROWTH})
"""Kinds of faults that leave each partition its leader, so that no partition replaces another."""


class WeightedFault(NamedTuple):
    """A fault and its relative frequency."""

    kind: FaultKind
    weight: int
    inject: Callable[[], None]


class _Repair(NamedTuple):
    """The repair of the disturbed broker, due at a monotonic time."""

    act: Callable[[], object]
    due_s: float
    ends_refusal: bool


class Site(ABC):
    """The brokers. `stuck_topic` is the one that the faults of kind STUCK refuse."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.stuck_topic = ""
        self._counts: dict[str, list[int]] = {}
        self._repair: _Repair | None = None

    @property
    def is_refusing(self) -> bool:
        """Return True while a fault of kind STUCK lasts."""
        return self._repair is not None and self._repair.ends_refusal

    def create_topics(self, topics: Sequence[str]) -> None:
        """Create topics; the last is the stuck topic."""
        self.stuck_topic = topics[-1]
        self._counts = {topic: [PARTITIONS] for topic in topics}
        for topic in topics:
            self._create_topic(topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to `partitions`."""
        self._counts[topic].append(partitions)  # first, because a request may succeed although it reports a failure
        self._create_partitions(topic, partitions)

    def counts(self, topic: str) -> Sequence[int]:
        """Return the partition counts that a topic has had, the present one last."""
        return self._counts[topic]

    def repair_if_due(self) -> None:
        if self._repair is not None and time.monotonic() >= self._repair.due_s:
            repair, self._repair = self._repair, None
            repair.act()

    def _schedule(self, repair: Callable[[], object], seconds: float, *, ends_refusal: bool = False) -> None:
        self._repair = _Repair(repair, time.monotonic() + seconds, ends_refusal)

    def _grow_topic(self, rng: random.Random, record: Callable[[str], None]) -> None:
        """Add one or two partitions to a topic, up to its limit."""
        topic = rng.choice(list(self._counts))
        wanted = self._counts[topic][-1] + rng.randint(1, 2)
        if wanted <= MOST_PARTITIONS:
            record(f"{wanted} partitions for {topic}")
            self.add_partitions(topic, wanted)

    @abstractmethod
    def _create_topic(self, topic: str) -> None: ...

    @abstractmethod
    def _create_partitions(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def faults(self, rng: random.Random, record: Callable[[str], None]) -> list[WeightedFault]:
        """Return the faults of these brokers; each describes itself through `record`."""

    @abstractmethod
    def heal(self) -> None:
        """Undo all faults."""

    @abstractmethod
    def read_back(self, topic: str) -> list[Seen]:
        """Read all records, each partition's in order of offset."""


class Real(Site):
    """A cluster of three real brokers."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.bootstrap)
        self._cluster = cluster

    def _create_topic(self, topic: str) -> None:
        in_sync = ALL_IN_SYNC if topic == self.stuck_topic else MIN_IN_SYNC
        self._cluster.create_topic(topic, PARTITIONS, REPLICAS, in_sync)

    def _create_partitions(self, topic: str, partitions: int) -> None:
        with suppress(KafkaException):  # a broker may have died that the others still list
            self._cluster.create_partitions(topic, partitions)

    def faults(self, rng: random.Random, record: Callable[[str], None]) -> list[WeightedFault]:
        cluster = self._cluster

        def disturb(verb: str, act: Callable[[int], None], repair: Callable[[int], None]) -> None:
            if self._is_whole():
                node = rng.choice(cluster.node_ids)
                record(f"{verb} broker {node}")
                act(node)
                self._schedule(lambda: repair(node), rng.uniform(2, 8))

        def refuse() -> None:
            if self._is_whole():
                node = rng.choice(cluster.node_ids)
                record(f"refuse {self.stuck_topic}: kill broker {node}")
                cluster.kill(node)
                self._schedule(lambda: cluster.begin_restart(node), rng.uniform(*STUCK_S), ends_refusal=True)

        def move_leader() -> None:
            if self._is_whole():
                topic = rng.choice(list(self._counts))
                replicas = list(cluster.node_ids)
                rng.shuffle(replicas)
                record(f"lead {topic}-0 from broker {replicas[0]}")
                with suppress(AssertionError, TimeoutError):
                    cluster.move_leader(topic, 0, replicas)

        def grow() -> None:
            if self._is_whole():
                self._grow_topic(rng, record)

        return [
            WeightedFault(FaultKind.BROKER, 10, lambda: disturb("kill", cluster.kill, cluster.begin_restart)),
            WeightedFault(FaultKind.BROKER, 6, lambda: disturb("terminate", cluster.terminate, cluster.begin_restart)),
            WeightedFault(FaultKind.BROKER, 8, lambda: disturb("suspend", cluster.suspend, cluster.resume)),
            WeightedFault(FaultKind.LEADER, 14, move_leader),
            WeightedFault(FaultKind.GROWTH, 8, grow),
            WeightedFault(FaultKind.STUCK, 4, refuse),
        ]

    def _is_whole(self) -> bool:
        return self._repair is None and self._cluster.is_whole(self._counts)

    def heal(self) -> None:
        self._cluster.heal()

    def read_back(self, topic: str) -> list[Seen]:
        return read_back_kafka(self._cluster, [topic])[topic]


def _is_endless(row: ErrorRow) -> bool:
    """Return True for an error that is retried without limit and keeps the brokers' state."""
    return row.action in {Action.RESEND, Action.PAUSE_AND_REROUTE} and row.retry_limit is None


class Embedded(Site):
    """Embedded brokers; with `epochs` they also report wrong sequence numbers, which may duplicate messages."""

    def __init__(self, broker: DevBroker, brokers: int, *, epochs: bool = False) -> None:
        super().__init__(broker.bootstrap)
        self._broker = broker
        self._ids = range(1, brokers + 1)
        self._rows = [row for row in ERROR_TABLE.values() if _is_endless(row)]
        self._rows += [row for row in ERROR_TABLE.values() if epochs and row.action is Action.BUMP_EPOCH]
        self._foreign: DevBroker | None = None

    def _create_topic(self, topic: str) -> None:
        self._broker.add_topic(topic, PARTITIONS)

    def _create_partitions(self, topic: str, partitions: int) -> None:
        self._broker.add_partitions(topic, partitions)

    def faults(self, rng: random.Random, record: Callable[[str], None]) -> list[WeightedFault]:
        broker = self._broker

        def take_down() -> None:
            if self._repair is None:
                node, elect, stale = rng.choice(self._ids), rng.random() < 0.5, rng.randrange(4)
                port = rng.choice((None, 0))  # the old port, or any; a restarted daemon needs one bootstrap server
                port = None if node == self._ids[0] else port
                record(f"broker {node} down, elect {elect}, stale {stale}, back on {port}")
                broker.broker_down(node, elect=elect, stale=stale)
                self._schedule(lambda: broker.broker_up(node, port=port), rng.uniform(0.5, 4))

        def move_leader() -> None:
            topic = rng.choice(list(self._counts))
            partition = rng.randrange(self.counts(topic)[-1])
            node, stale = rng.choice(self._ids), rng.randrange(4)
            record(f"lead {topic}-{partition} from broker {node}, stale {stale}")
            broker.move_leader(topic, partition, node, stale=stale)

        def refuse() -> None:
            if self._repair is None:
                record(f"refuse {self.stuck_topic}")
                error = Fault(action=FaultAction.ERROR, code=NOT_ENOUGH_REPLICAS, topic=self.stuck_topic, times=None)
                broker.inject(error)
                self._schedule(broker.clear_faults, rng.uniform(*STUCK_S), ends_refusal=True)

        def inject(fault: Fault) -> None:
            record(f"{fault.action} {fault.code or ''} {fault.topic} {fault.nth} {fault.every} {fault.times}")
            broker.inject(fault)

        return [
            WeightedFault(FaultKind.BROKER, 15, take_down),
            WeightedFault(FaultKind.LEADER, 15, move_leader),
            WeightedFault(FaultKind.GROWTH, 8, lambda: self._grow_topic(rng, record)),
            WeightedFault(FaultKind.ANSWER, 30, lambda: inject(self._fault(rng, rng.choice(BROKEN), 0))),
            WeightedFault(FaultKind.ANSWER, 30, lambda: inject(self._error(rng))),
            WeightedFault(FaultKind.STUCK, 8, refuse),
            WeightedFault(FaultKind.CLUSTER, 4, lambda: self._swap_cluster(rng, record)),
        ]

    def _swap_cluster(self, rng: random.Random, record: Callable[[str], None]) -> None:
        if self._repair is None:
            node = rng.choice(self._ids)
            record(f"another cluster at the address of broker {node}")
            port = self._broker.broker_up(node)
            for each in self._ids:
                self._broker.broker_down(each)
            self._foreign = DevBroker(topics=dict.fromkeys(self._counts, PARTITIONS), cluster_id="another")
            self._foreign.broker_down(1)
            self._foreign.broker_up(1, port=port)
            self._schedule(self._restore_cluster, rng.uniform(*FOREIGN_S))

    def _error(self, rng: random.Random) -> Fault:
        row = rng.choice(self._rows)
        appends = row.may_duplicate and rng.random() < 0.5
        return self._fault(rng, FaultAction.ERROR_APPENDED if appends else FaultAction.ERROR, row.code)

    def _fault(self, rng: random.Random, action: FaultAction, code: int) -> Fault:
        return Fault(
            action=action,
            code=code,
            topic=rng.choice((None, *self._counts)),
            nth=rng.randint(1, 4),
            every=rng.randint(1, 3),
            times=rng.randint(1, 4),
            ms=rng.choice((20, 200, 2000)),
        )

    def heal(self) -> None:
        self._broker.clear_faults()
        self._restore_cluster()

    def _restore_cluster(self) -> None:
        if self._foreign is not None:
            foreign, self._foreign = self._foreign, None
            with foreign:
                stored = [foreign.fetch(topic) for topic in self._counts]
                assert not any(any(partitions) for partitions in stored), "The other cluster has messages."
        for node in self._ids:
            self._broker.broker_up(node)

    def read_back(self, topic: str) -> list[Seen]:
        return read_back(self._broker, [topic])[topic]
