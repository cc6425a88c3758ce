"""Clusters of real Kafka brokers that a test can kill, suspend and restart.

    with KafkaCluster("4.3.1", brokers=3) as kafka:
        kafka.create_topic("news", partitions=3, replication=3)
        kafka.kill(kafka.leader("news"))
        ...
        assert kafka.read_all("news", expected=1000)[0][0].value == b"first"

* Brokers are named by their node id: 1, 2, 3.  A port belongs to its broker until `close`, also while it is down.
* The JVMs die with the process that started them, however that ends; `close` kills them and deletes their data.
* In KRaft versions each broker is a controller too: of three, only one may be down at a time.
* `heal_all` makes all clusters whole again, so that a test which ends early spoils none after it.
* A method that changes the cluster returns when all running brokers know of the change, so that a test never sleeps.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from support import kafka_config, processes
from support.kafka_dist import NEWEST, ensure
from support.kafka_java import CHECKPOINT, JavaProcess, formatted_checkpoint, run_java
from support.kafka_metadata import Metadata, Partition, ask_zookeeper, fetch_metadata, registered_brokers
from support.kafka_reader import read_topics
from support.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from support.kafka_reader import PartitionId, Record

START_TIMEOUT_S: Final = 120.0
CHANGE_TIMEOUT_S: Final = 60.0


class KafkaCluster:
    """`brokers` brokers of one Kafka version on loopback.  `config` goes into each broker's property file.

    `fast_failover` makes a dead leader known after 1 to 2 s; without it Kafka's defaults hold (6 to 10 s).
    `directory` takes the data (a new temporary directory if not given) and is removed by `close`.
    """

    _open: ClassVar[list[KafkaCluster]] = []

    def __init__(
        self,
        version: str = NEWEST,
        *,
        brokers: int = 1,
        config: Mapping[str, str] | None = None,
        fast_failover: bool = True,
        directory: Path | None = None,
    ) -> None:
        self.dist = ensure(version)
        self.version = version
        self._overrides = {**(kafka_config.FAST_FAILOVER if fast_failover else {}), **(config or {})}
        self._directory = directory or Path(tempfile.mkdtemp(prefix="bruce-kafka-"))
        self._ports = [ReservedPort() for _ in range(2 * brokers + 1)]
        self._zookeeper: JavaProcess | None = None
        self._zookeeper_port = self._ports[-1].number if self.dist.release.zookeeper else None
        self._plans = [self._plan(node_id, brokers) for node_id in range(1, brokers + 1)]
        self._nodes: dict[int, JavaProcess] = {}
        self._is_hurt = False

    def _plan(self, node_id: int, brokers: int) -> kafka_config.NodePlan:
        ports = self._ports[node_id - 1].number, self._ports[brokers + node_id - 1].number
        return kafka_config.NodePlan(node_id, *ports, self._directory / f"broker-{node_id}")

    # --- life --------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._open.append(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all brokers and delete their data; on SIGTERM a KRaft cluster would wait for its own quorum."""
        if self in self._open:
            self._open.remove(self)
        for node in self._all_nodes():
            node.kill()
        for port in self._ports:
            port.release()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _all_nodes(self) -> Iterable[JavaProcess]:
        return [*self._nodes.values(), *([self._zookeeper] if self._zookeeper else [])]

    def _start(self) -> None:
        if self._zookeeper_port:
            self._start_zookeeper(self._zookeeper_port)
        else:
            self._format()
        for plan in self._plans:
            self._nodes[plan.node_id] = self._create_node(plan)
            self._nodes[plan.node_id].start()
        self._wait(self._all_listed, "all brokers list all brokers", START_TIMEOUT_S)

    def _create_node(self, plan: kafka_config.NodePlan) -> JavaProcess:
        plan.directory.mkdir(parents=True, exist_ok=True)
        properties = plan.directory / "server.properties"
        overrides = {**self._overrides, **self._settings(plan)}
        properties.write_text(
            kafka_config.broker_properties(self.dist, plan, self._plans, self._zookeeper_port, overrides)
        )
        java, *words = kafka_config.java_command(self.dist, plan.directory, kafka_config.BROKER_CLASS, [properties])
        command = [java, *self._java_options(plan), *words]
        return JavaProcess(f"Kafka {self.version} broker {plan.node_id}", plan.directory, command)

    def _settings(self, _plan: kafka_config.NodePlan) -> dict[str, str]:
        """Return further settings of a broker."""
        return {}

    def _java_options(self, _plan: kafka_config.NodePlan) -> list[str]:
        return []

    def _start_zookeeper(self, port: int) -> None:
        directory = self._directory / "zookeeper"
        directory.mkdir(parents=True)
        properties = directory / "zookeeper.properties"
        properties.write_text(kafka_config.zookeeper_properties(port, directory))
        command = kafka_config.java_command(self.dist, directory, kafka_config.ZOOKEEPER_CLASS, [properties])
        self._zookeeper = JavaProcess("ZooKeeper", directory, command)
        self._zookeeper.start()
        self._wait(lambda: ask_zookeeper(port, "ruok") == "imok", "ZooKeeper answers", START_TIMEOUT_S)

    def _format(self) -> None:
        """Format the data directories without a JVM per broker: the checkpoint is the same for a whole version."""
        checkpoint = formatted_checkpoint(self.dist)
        cluster_id = secrets.token_urlsafe(16)
        for plan in self._plans:
            plan.data.mkdir(parents=True)
            meta = kafka_config.meta_properties(cluster_id, plan.node_id, secrets.token_urlsafe(16))
            (plan.data / "meta.properties").write_text(meta)
            shutil.copy(checkpoint, plan.data / CHECKPOINT)

    # --- parts for clients -------------------------------------------------------------------------------------------
    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(plan.node_id for plan in self._plans)

    def port(self, node_id: int) -> int:
        return self._plans[node_id - 1].port

    def pid(self, node_id: int) -> int:
        return self._nodes[node_id].running.pid

    @property
    def bootstrap_servers(self) -> list[str]:
        return [f"127.0.0.1:{plan.port}" for plan in self._plans]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstrap_servers)

    @property
    def librdkafka_config(self) -> dict[str, Any]:
        """Return the settings of a `confluent_kafka` client for this version."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if not self.dist.release.admin_api:
            config |= {"api.version.request": False, "broker.version.fallback": self.version}
        return config

    def log_files(self, topic: str) -> list[Path]:
        """Return the files of all brokers with records of `topic`."""
        places = [place for plan in self._plans for place in plan.data.glob(f"{topic}-*")]
        return [file for place in sorted(places) for file in sorted(place.glob("*.log"))]

    # --- topics ------------------------------------------------------------------------------------------------------
    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until all running brokers name a leader for each of its partitions."""
        if self.dist.release.admin_api:
            topic = NewTopic(name, partitions, replication, config=dict(config or {}))
            admin = AdminClient(self.librdkafka_config)
            created = admin.create_topics([topic], operation_timeout=CHANGE_TIMEOUT_S)[name]
            error = created.exception(CHANGE_TIMEOUT_S)
            # librdkafka repeats a request whose response is late; the topics of the tests have names of their own.
            if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise error
        elif config or not self._has_default_shape(partitions, replication):
            self._create_topic_by_command(name, partitions, replication, config or {})
        # else: a broker that is asked for its metadata creates it
        self._wait(lambda: self._has_leaders(name, partitions), f"topic {name} has leaders on all brokers")

    def _has_default_shape(self, partitions: int, replication: int) -> bool:
        default = min(len(self._plans), kafka_config.MOST_COPIES)
        return (str(partitions), replication) == (self._overrides.get("num.partitions", "1"), default)

    def _create_topic_by_command(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        settings = [word for key, value in config.items() for word in ("--config", f"{key}={value}")]
        words = (
            f"--create --zookeeper 127.0.0.1:{self._zookeeper_port} --topic {name}"
            f" --partitions {partitions} --replication-factor {replication}"
        )
        run_java(self.dist, self._directory, kafka_config.TOPIC_CLASS, [*words.split(), *settings])

    def create_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to `partitions`; the brokers learn this one by one."""
        admin = AdminClient(self.librdkafka_config)
        wanted = [NewPartitions(topic, partitions)]
        admin.create_partitions(wanted, operation_timeout=CHANGE_TIMEOUT_S)[topic].result(CHANGE_TIMEOUT_S)

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        return all(
            len(view := metadata.topics.get(topic, {})) == partitions and all(p.has_leader for p in view.values())
            for metadata in self._views([topic])
        )

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader's node id once all running brokers agree."""
        return self._agreed(topic, partition).leader

    def _agreed(self, topic: str, partition: int) -> Partition:
        found: set[Partition] = set()

        def agree() -> bool:
            found.clear()
            found.update(view.topics[topic][partition] for view in self._views([topic]))
            return len({p.leader for p in found}) == 1 and all(p.has_leader for p in found)

        self._wait(agree, f"all brokers agree on the leader of {topic}-{partition}")
        return found.pop()

    def move_leader(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Reassign the partition (2.4 and later); the first of `replicas` becomes its leader."""
        place = TopicPartition(topic, partition)
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            admin.alter_partition_reassignments({place: list(replicas)})
            self._wait(lambda: self._is_replicated(topic, partition, replicas), f"{topic}-{partition} is on {replicas}")
            if self.leader(topic, partition) != replicas[0]:
                admin.elect_leaders(0, {topic: [partition]}, raise_errors=False)
            self._wait(lambda: self.leader(topic, partition) == replicas[0], f"{replicas[0]} leads {topic}-{partition}")
        finally:
            admin.close()

    def _is_replicated(self, topic: str, partition: int, replicas: Sequence[int]) -> bool:
        view = self._agreed(topic, partition)
        return view.replicas == tuple(replicas) and view.in_sync == set(replicas)

    def wait_in_sync(self, topic: str) -> None:
        """Wait until each replica of each partition of `topic` is in sync."""
        self._wait(lambda: self._is_in_sync(topic), f"all replicas of {topic} are in sync")

    def is_whole(self, topics: Iterable[str]) -> bool:
        """Return True if all running brokers list each other, and each replica of each partition is in sync."""
        for node in self._all_nodes():
            node.raise_if_ended()
        with suppress(OSError, KeyError):  # a broker is not up yet
            return self._all_listed() and all(map(self._is_in_sync, topics))
        return False

    def _is_in_sync(self, topic: str) -> bool:
        return all(p.in_sync == set(p.replicas) for view in self._views([topic]) for p in view.topics[topic].values())

    # --- records -----------------------------------------------------------------------------------------------------
    def read_all(self, topic: str, expected: int | None = None, timeout: float = 60.0) -> dict[int, list[Record]]:
        """Read the records of each partition from its beginning to its end; see `read_topics`."""
        read = self.read_topics([topic], expected, timeout)
        return {partition: records for (_, partition), records in read.items()}

    def read_topics(
        self, topics: Iterable[str], expected: int | None = None, timeout: float = 60.0
    ) -> dict[PartitionId, list[Record]]:
        return read_topics(self.librdkafka_config, topics, expected, timeout)

    # --- faults ------------------------------------------------------------------------------------------------------
    def kill(self, node_id: int) -> None:
        """Send SIGKILL and wait for the end of the process, but not for the other brokers to notice."""
        self._is_hurt = True
        self._nodes[node_id].kill()

    def terminate(self, node_id: int) -> None:
        """Send SIGTERM: the broker transfers its leaderships and ends."""
        self._is_hurt = True
        self._nodes[node_id].terminate(CHANGE_TIMEOUT_S)

    def suspend(self, node_id: int) -> None:
        """Send SIGSTOP: the broker keeps its connections and does not answer."""
        self._is_hurt = True
        self._nodes[node_id].suspend()

    def resume(self, node_id: int) -> None:
        """Send SIGCONT after `suspend`."""
        self._nodes[node_id].resume()

    def begin_restart(self, node_id: int) -> None:
        """Restart a broker without waiting; `is_whole` tells when it has returned."""
        self._is_hurt = True
        node = self._nodes[node_id]
        node.kill()
        if port := self._zookeeper_port:  # the broker's old session must end first, or some versions exit
            self._wait(lambda: node_id not in registered_brokers(port), f"ZooKeeper forgets broker {node_id}")
        node.start()

    def restart(self, node_id: int) -> None:
        """Start the broker again on its old data and port (killing it first if it runs)."""
        self.begin_restart(node_id)
        self._wait(self._all_listed, f"all brokers list broker {node_id} again", START_TIMEOUT_S)

    def heal(self) -> None:
        """Undo `kill`, `terminate` and `suspend`: all brokers run again and list each other."""
        if not self._is_hurt:
            return
        for node_id, node in self._nodes.items():
            if node.suspended:
                self.resume(node_id)
            elif not node.answers:
                self.restart(node_id)
        self._wait(self._all_listed, "all brokers list all brokers", START_TIMEOUT_S)
        self._is_hurt = False

    @classmethod
    def heal_all(cls) -> None:
        """Heal all open clusters."""
        for cluster in cls._open:
            cluster.heal()

    # --- metadata ----------------------------------------------------------------------------------------------------
    def metadata(self, node_id: int, topics: Sequence[str] = ()) -> Metadata:
        """Fetch a broker's metadata. Raises `OSError` if it does not answer."""
        return fetch_metadata(self.port(node_id), topics)

    def _views(self, topics: Sequence[str] = ()) -> list[Metadata]:
        return [self.metadata(node_id, topics) for node_id in self._answering()]

    def _answering(self) -> frozenset[int]:
        return frozenset(node_id for node_id, node in self._nodes.items() if node.answers)

    def _all_listed(self) -> bool:
        answering = self._answering()
        views = self._views()
        if self.dist.release.lists_brokers and not all(answering <= view.brokers for view in views):
            return False
        return answering <= self._registered()

    def _registered(self) -> frozenset[int]:
        return registered_brokers(self._zookeeper_port) if self._zookeeper_port else frozenset(self.node_ids)

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float = CHANGE_TIMEOUT_S) -> None:
        def holds() -> bool:
            for node in self._all_nodes():
                node.raise_if_ended()
            with suppress(OSError, KeyError):  # not up yet; not known yet
                return condition()
            return False

        processes.wait_until(holds, what, timeout)
