"""The clusters with a broker of three that dies: the embedded brokers, or real ones.

The embedded ones elect no leader: the partitions of the dead broker have no leader until it is back.  Real ones have
three replicas of each partition, and elect another leader when they have noticed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bench.outage.load import Place
from bruce_mp.devbroker.control import DevBroker
from support.kafka_cluster import KafkaCluster
from support.kafka_metadata import fetch_metadata

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = ["Embedded", "RealKafka", "Site", "Traits", "client_of"]

VICTIM: Final = 1
BROKERS: Final = 3


class Traits(NamedTuple):
    """The properties of a site that its figures depend on.

    `elects`: other brokers take over the dead broker's partitions.  `has_append_times`: the timestamps of records are
    the append times of the leaders' logs.
    """

    name: str
    elects: bool
    has_append_times: bool


class Site(Protocol):
    """A cluster of three brokers, one of them the victim."""

    bootstrap: str

    @property
    def traits(self) -> Traits: ...

    def killed_places(self) -> frozenset[Place]:
        """The partitions that the victim leads now."""

    def kill(self) -> None:
        """Kill the victim."""

    def bring_back(self) -> None:
        """Restart the victim, and return once it has all records that it missed."""


class Embedded:
    """The embedded brokers."""

    traits: Final = Traits("embedded brokers", elects=False, has_append_times=False)

    def __init__(self, broker: DevBroker, topics: Collection[str]) -> None:
        self._broker = broker
        self._topics = topics
        self.bootstrap = broker.bootstrap

    @classmethod
    @contextmanager
    def open(cls, topics: Mapping[str, int]) -> Iterator[Embedded]:
        """Start them; partitions by topic."""
        with DevBroker(brokers=BROKERS, topics=topics) as broker:
            yield cls(broker, topics)

    def killed_places(self) -> frozenset[Place]:
        port = self.bootstrap.split(",")[VICTIM - 1].rpartition(":")[2]
        return _led_by_victim(int(port), self._topics)

    def kill(self) -> None:
        self._broker.broker_down(VICTIM, elect=False)

    def bring_back(self) -> None:
        self._broker.broker_up(VICTIM)


class RealKafka:
    """Real brokers, newest version, three replicas; a death is known after 1 to 2 s (`KafkaCluster`)."""

    TOPIC: Final[Mapping[str, str]] = {"message.timestamp.type": "LogAppendTime"}

    def __init__(self, cluster: KafkaCluster, topics: Mapping[str, int]) -> None:
        self._cluster = cluster
        self._topics = topics
        for topic, partitions in topics.items():
            cluster.create_topic(topic, partitions, BROKERS, self.TOPIC)
        self.traits = Traits(f"Kafka {cluster.version}", elects=True, has_append_times=True)
        self.bootstrap = cluster.bootstrap

    @classmethod
    @contextmanager
    def open(cls, topics: Mapping[str, int]) -> Iterator[RealKafka]:
        """Start them; partitions by topic."""
        with KafkaCluster(brokers=BROKERS) as cluster:
            yield cls(cluster, topics)

    def killed_places(self) -> frozenset[Place]:
        return _led_by_victim(self._cluster.port(VICTIM), self._topics)

    def kill(self) -> None:
        self._cluster.kill(VICTIM)

    def bring_back(self) -> None:
        self._cluster.restart(VICTIM)
        for topic in self._topics:
            self._cluster.wait_in_sync(topic)


def client_of(site: Site) -> dict[str, Any]:
    """Return the configuration of a librdkafka client for a site."""
    return {"bootstrap.servers": site.bootstrap}


def _led_by_victim(port: int, topics: Collection[str]) -> frozenset[Place]:
    return frozenset(
        Place(topic, number)
        for topic, partitions in fetch_metadata(port, list(topics)).topics.items()
        for number, partition in partitions.items()
        if partition.leader == VICTIM
    )
