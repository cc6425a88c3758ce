"""The property files and command lines of Kafka and ZooKeeper, as text.

The settings suit tests: small heaps, one partition for each internal topic, no wait for more group members.
`FAST_FAILOVER` makes a dead leader known after 1 to 2 s instead of 6 to 10 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from support.kafka_dist import KafkaDist

BROKER_CLASS: Final = "kafka.Kafka"
FORMAT_CLASS: Final = "kafka.tools.StorageTool"
TOPIC_CLASS: Final = "kafka.admin.TopicCommand"
ZOOKEEPER_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

MOST_COPIES: Final = 3

JVM_FLAGS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # the JVM's file in the shared temporary directory would survive SIGKILL
    "--add-opens=java.base/java.nio=ALL-UNNAMED",  # the old versions reach into the library of Java 8
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

LOG4J_PROPERTIES: Final = """log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""

FAST_FAILOVER: Final = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.request.timeout.ms": "800",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.session.timeout.ms": "4000",
}
"""Versions ignore the names that they do not know, so one table serves KRaft and ZooKeeper.

A broker whose ZooKeeper session ends while it starts gives up; on a busy machine a start pauses for seconds."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The parameters of one broker's property file; in KRaft versions the broker is a controller too."""

    node_id: int
    port: int
    controller_port: int
    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"


def broker_properties(
    dist: KafkaDist, node: NodePlan, nodes: Sequence[NodePlan], zookeeper_port: int | None, overrides: Mapping[str, str]
) -> str:
    """Return the property file of `node`, one of `nodes`; later settings win."""
    roles, listener = _kraft_roles(node, nodes), _listener(node, kraft=not zookeeper_port)
    if zookeeper_port:
        roles = {"broker.id": str(node.node_id), "zookeeper.connect": f"127.0.0.1:{zookeeper_port}"}
    if dist.release.version.startswith("0.8."):
        listener = {"host.name": "127.0.0.1", "port": str(node.port)}
    return _properties({**roles, **listener, **_common(node, len(nodes)), **overrides})


def _kraft_roles(node: NodePlan, nodes: Sequence[NodePlan]) -> dict[str, str]:
    voters = nodes if len(nodes) % 2 else nodes[:-1]
    return {
        "process.roles": "broker,controller" if node in voters else "broker",
        "node.id": str(node.node_id),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{n.node_id}@127.0.0.1:{n.controller_port}" for n in voters),
    }


def _listener(node: NodePlan, *, kraft: bool) -> dict[str, str]:
    plain = f"PLAINTEXT://127.0.0.1:{node.port}"
    if not kraft:
        return {"listeners": plain, "advertised.listeners": plain}
    return {
        "listeners": f"{plain},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": plain,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }


def _common(node: NodePlan, brokers: int) -> dict[str, str]:
    copies = str(min(brokers, MOST_COPIES))
    return {
        "log.dirs": str(node.data),
        "num.partitions": "1",
        "default.replication.factor": copies,
        "auto.create.topics.enable": "true",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "metadata.max.idle.interval.ms": "0",  # else a third of the CPU of idle brokers
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "2097152",  # the default does not fit the small heap
        # A hundred years: records of tests have old timestamps, and the first clean-up comes after 30 s.  Kafka 0.8 has
        # no value for unlimited.
        "log.retention.hours": "876000",
    }


def zookeeper_properties(port: int, directory: Path) -> str:
    return _properties(
        {
            "clientPort": str(port),
            "clientPortAddress": "127.0.0.1",
            "dataDir": str(directory),
            "maxClientCnxns": "0",
            "tickTime": "500",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
    )


def meta_properties(cluster_id: str, node_id: int, directory_id: str) -> str:
    """Return the properties that `StorageTool format` writes into a data directory."""
    return _properties(
        {"version": "1", "cluster.id": cluster_id, "node.id": str(node_id), "directory.id": directory_id}
    )


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def archive_of(dist: KafkaDist) -> Path:
    """Return the path of the archive of a version's classes for this Java runtime; see `support.kafka_archive`."""
    return dist.directory / f"{dist.java.resolve().parent.parent.name}.jsa"


def java_command(dist: KafkaDist, directory: Path, main_class: str, arguments: Iterable[str | Path]) -> list[str]:
    """Run `main_class`; its temporary files and those of its native libraries stay in `directory`."""
    log4j = directory / "log4j.properties"
    log4j.write_text(LOG4J_PROPERTIES)
    local = (f"-Djava.io.tmpdir={directory}", f"-Dlog4j.configuration=file:{log4j}")
    archive = archive_of(dist)
    archived = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
    return [str(dist.java), *JVM_FLAGS, *archived, *local, "-cp", dist.class_path, main_class, *map(str, arguments)]
