"""The brokers of a chaos run, real or embedded, and their faults.

A site hurts one broker at a time, and repairs it after some seconds, when `mend_if_due` is called. With real brokers,
the next fault waits until every replica is in sync, because otherwise Kafka itself may lose acknowledged records.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from confluent_kafka import KafkaException

from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE, Action, ErrorRow
from support.traffic import Seen

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.devbroker.control import DevBroker
    from support.kafka_cluster import KafkaCluster

__all__ = ["CALM", "PARTITIONS", "Deed", "Embedded", "Harm", "Real", "Site"]

PARTITIONS: Final = 3
MOST_PARTITIONS: Final = 11
REPLICAS: Final = 3
MIN_IN_SYNC: Final = {"min.insync.replicas": "2"}
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
class Harm(Enum):
    """Kinds of faults; a run may exclude some."""

    BROKER = "a broker is killed, terminated or stopped"
    LEADER = "a partition is moved to another broker (real ones: 2.4 and later)"
    ANSWER = "requests are answered with errors, late, wrongly or not at all (embedded brokers)"
    PROCESS = "some or all of our processes are killed or stopped"
    GROWTH = "a topic gets more partitions"
    RESTART = "the daemon is terminated, which may remove the slab and its counters, and started again"


CALM: Final = frozenset({Harm.PROCESS, Harm.RESTART, Harm.GROWTH})
"""Kinds of harm that leave each partition its leader, so that no partition replaces another."""


class Deed(NamedTuple):
    """A fault and its relative frequency."""

    harm: Harm
    weight: int
    do: Callable[[], None]


class Site(Protocol):
    """The brokers."""

    @property
    def bootstrap(self) -> str: ...

    def make_topics(self, topics: Sequence[str]) -> None: ...

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to `partitions`."""
        ...

    def counts(self, topic: str) -> Sequence[int]:
        """Return the partition counts that a topic has had, the present one last."""
        ...

    def deeds(self, rng: random.Random, note: Callable[[str], None]) -> list[Deed]:
        """Return the faults of these brokers; each describes itself through `note`."""
        ...

    def mend_if_due(self) -> None: ...

    def heal(self) -> None:
        """Undo all harm."""
        ...

    def read_back(self, topic: str) -> list[Seen]:
        """Read all records, each partition's in order of offset."""
        ...


class _Mending:
    """The hurt broker, if any."""

    def __init__(self) -> None:
        self._mend: Callable[[], object] | None = None
        self._at = 0.0

    @property
    def is_pending(self) -> bool:
        return self._mend is not None

    def later(self, mend: Callable[[], object], seconds: float) -> None:
        self._mend, self._at = mend, time.monotonic() + seconds

    def do_if_due(self) -> None:
        if self._mend is not None and time.monotonic() >= self._at:
            mend, self._mend = self._mend, None
            mend()


class _Growing:
    """The partition counts that topics have had."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def begin(self, topics: Iterable[str]) -> None:
        self._counts.update({topic: [PARTITIONS] for topic in topics})

    def note(self, topic: str, partitions: int) -> None:
        """Record a count before the request: a request may succeed although it reports a failure."""
        self._counts[topic].append(partitions)

    def counts(self, topic: str) -> Sequence[int]:
        return self._counts[topic]

    def deed(self, site: Site, rng: random.Random, note: Callable[[str], None]) -> None:
        """Add one or two partitions to a topic, up to its limit."""
        topic = rng.choice(list(self._counts))
        wanted = self._counts[topic][-1] + rng.randint(1, 2)
        if wanted <= MOST_PARTITIONS:
            note(f"{wanted} partitions for {topic}")
            site.add_partitions(topic, wanted)


class Real:
    """A cluster of three real brokers."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._topics: Sequence[str] = ()
        self._growing = _Growing()
        self.counts = self._growing.counts
        self._mending = _Mending()

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def make_topics(self, topics: Sequence[str]) -> None:
        self._topics = topics
        for topic in topics:
            self._cluster.create_topic(topic, PARTITIONS, REPLICAS, MIN_IN_SYNC)
        self._growing.begin(topics)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._growing.note(topic, partitions)
        with suppress(KafkaException):  # a broker may have died that its neighbours still list
            self._cluster.create_partitions(topic, partitions)

    def deeds(self, rng: random.Random, note: Callable[[str], None]) -> list[Deed]:
        cluster = self._cluster

        def hurt(word: str, harm: Callable[[int], None], mend: Callable[[int], None]) -> None:
            if self._is_whole():
                node = rng.choice(cluster.node_ids)
                note(f"{word} broker {node}")
                harm(node)
                self._mending.later(lambda: mend(node), rng.uniform(2, 8))

        def move_leader() -> None:
            if self._is_whole():
                topic = rng.choice(self._topics)
                replicas = list(cluster.node_ids)
                rng.shuffle(replicas)
                note(f"lead {topic}-0 from broker {replicas[0]}")
                with suppress(AssertionError, TimeoutError):
                    cluster.move_leader(topic, 0, replicas)

        def grow() -> None:
            if self._is_whole():
                self._growing.deed(self, rng, note)

        return [
            Deed(Harm.BROKER, 10, lambda: hurt("kill", cluster.kill, cluster.begin_restart)),
            Deed(Harm.BROKER, 6, lambda: hurt("terminate", cluster.terminate, cluster.begin_restart)),
            Deed(Harm.BROKER, 8, lambda: hurt("freeze", cluster.stop, cluster.cont)),
            Deed(Harm.LEADER, 14, move_leader),
            Deed(Harm.GROWTH, 8, grow),
        ]

    def _is_whole(self) -> bool:
        return not self._mending.is_pending and self._cluster.is_whole(self._topics)

    def mend_if_due(self) -> None:
        self._mending.do_if_due()

    def heal(self) -> None:
        self._cluster.heal()

    def read_back(self, topic: str) -> list[Seen]:
        return [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, some in sorted(self._cluster.read_all(topic).items())
            for record in some
        ]


def _is_endless(row: ErrorRow) -> bool:
    """Return True for an error that is retried without limit and keeps the brokers' state."""
    return row.action in {Action.RESEND, Action.PAUSE_AND_REROUTE} and row.attempt_limit is None


class Embedded:
    """Embedded brokers; with `epochs` they also report wrong sequence numbers, which may duplicate messages."""

    def __init__(self, broker: DevBroker, brokers: int, *, epochs: bool = False) -> None:
        self._broker = broker
        self._ids = range(1, brokers + 1)
        self._rows = [row for row in ERROR_TABLE.values() if _is_endless(row)]
        self._rows += [row for row in ERROR_TABLE.values() if epochs and row.action is Action.BUMP_EPOCH]
        self._topics: Sequence[str] = ()
        self._mending = _Mending()
        self._growing = _Growing()
        self.counts = self._growing.counts

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def make_topics(self, topics: Sequence[str]) -> None:
        self._topics = topics
        for topic in topics:
            self._broker.add_topic(topic, PARTITIONS)
        self._growing.begin(topics)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._growing.note(topic, partitions)
        self._broker.add_partitions(topic, partitions)

    def deeds(self, rng: random.Random, note: Callable[[str], None]) -> list[Deed]:
        broker = self._broker

        def take_down() -> None:
            if not self._mending.is_pending:
                node, elect, stale = rng.choice(self._ids), rng.random() < 0.5, rng.randrange(4)
                port = rng.choice((None, 0))
                note(f"broker {node} down, elect {elect}, stale {stale}, back on {port}")
                broker.broker_down(node, elect=elect, stale=stale)
                self._mending.later(lambda: broker.broker_up(node, port=port), rng.uniform(0.5, 4))

        def move_leader() -> None:
            topic = rng.choice(self._topics)
            partition = rng.randrange(self.counts(topic)[-1])
            node, stale = rng.choice(self._ids), rng.randrange(4)
            note(f"lead {topic}-{partition} from broker {node}, stale {stale}")
            broker.move_leader(topic, partition, node, stale=stale)

        def inject(fault: Fault) -> None:
            note(f"{fault.action} {fault.code or ''} {fault.topic} {fault.nth} {fault.every} {fault.times}")
            broker.inject(fault)

        return [
            Deed(Harm.BROKER, 15, take_down),
            Deed(Harm.LEADER, 15, move_leader),
            Deed(Harm.GROWTH, 8, lambda: self._growing.deed(self, rng, note)),
            Deed(Harm.ANSWER, 30, lambda: inject(self._fault(rng, rng.choice(BROKEN), 0))),
            Deed(Harm.ANSWER, 30, lambda: inject(self._error(rng))),
        ]

    def _error(self, rng: random.Random) -> Fault:
        row = rng.choice(self._rows)
        appends = row.may_duplicate and rng.random() < 0.5
        return self._fault(rng, FaultAction.ERROR_APPENDED if appends else FaultAction.ERROR, row.code)

    def _fault(self, rng: random.Random, action: FaultAction, code: int) -> Fault:
        return Fault(
            action=action,
            code=code,
            topic=rng.choice((None, *self._topics)),
            nth=rng.randint(1, 4),
            every=rng.randint(1, 3),
            times=rng.randint(1, 4),
            ms=rng.choice((20, 200, 2000)),
        )

    def mend_if_due(self) -> None:
        self._mending.do_if_due()

    def heal(self) -> None:
        self._broker.clear_faults()
        for node in self._ids:
            self._broker.broker_up(node)

    def read_back(self, topic: str) -> list[Seen]:
        return [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, records in enumerate(self._broker.fetch(topic))
            for record in records
        ]
