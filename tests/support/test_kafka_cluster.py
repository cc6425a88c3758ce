"""The harness with real brokers: the behaviour that the other tests rely on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer

from support.kafka_cluster import KafkaCluster
from support.kafka_config import archive_of, java_command
from support.kafka_dist import NEWEST, RELEASES, KafkaDist
from support.kafka_reader import Record
from support.processes import descendants, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOW_MS: Final = 1_700_000_000_000


def produce(kafka: KafkaCluster, topic: str, partition: int, values: Sequence[bytes]) -> None:
    producer = Producer({**kafka.librdkafka_config, "log_level": 0})
    for n, value in enumerate(values):
        producer.produce(topic, value, key=b"key", partition=partition, timestamp=NOW_MS + n, headers=[("h", b"\x00")])
    assert producer.flush(60) == 0


def records(values: Sequence[bytes]) -> list[Record]:
    return [Record(n, b"key", value, NOW_MS + n, (("h", b"\x00"),)) for n, value in enumerate(values)]


def test_produced_records_are_read_back_with_all_fields(kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic("read-back", partitions=3)
    produce(kafka_versions, "read-back", 0, [b"one", b"", b"three"])
    produce(kafka_versions, "read-back", 2, [b"x" * 100_000])
    assert kafka_versions.read_all("read-back", expected=4) == {
        0: records([b"one", b"", b"three"]),
        1: [],
        2: records([b"x" * 100_000]),
    }


def test_an_empty_topic_is_read_immediately(kafka_3: KafkaCluster) -> None:
    kafka_3.create_topic("empty")
    assert kafka_3.read_all("empty") == {0: []}


def test_missing_records_are_an_error_with_the_counts(kafka_3: KafkaCluster) -> None:
    kafka_3.create_topic("short")
    produce(kafka_3, "short", 0, [b"one"])
    with pytest.raises(AssertionError, match=r"1 of 2 records after 1 s; not read to the end: \[\]"):
        kafka_3.read_all("short", expected=2, timeout=1)


def test_create_topic_applies_settings(kafka_3: KafkaCluster) -> None:
    kafka_3.create_topic("small", config={"max.message.bytes": "1000"})
    refused: list[str] = []
    producer = Producer({**kafka_3.librdkafka_config, "log_level": 0})
    producer.produce("small", b"x" * 5000, on_delivery=lambda error, _message: refused.append(str(error)))
    producer.flush(60)
    assert len(refused) == 1
    assert "MSG_SIZE_TOO_LARGE" in refused[0]


@pytest.fixture
def hurt(kafka_3: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[tuple[KafkaCluster, str]]:
    """The shared cluster and a topic of this test's own; healed afterwards."""
    topic = request.node.name.replace("[", "-").rstrip("]")
    kafka_3.create_topic(topic, replication=3)
    produce(kafka_3, topic, 0, [b"before"])
    yield kafka_3, topic
    kafka_3.heal()
    kafka_3.wait_in_sync(topic)


@pytest.mark.parametrize(
    "fault", ["suspend", *(pytest.param(each, marks=pytest.mark.soak) for each in ("kill", "terminate"))]
)
def test_a_failed_leader_is_replaced(hurt: tuple[KafkaCluster, str], fault: str) -> None:
    kafka, topic = hurt
    first = kafka.leader(topic)
    getattr(kafka, fault)(first)
    wait_until(lambda: kafka.leader(topic) != first, "another leader")
    kafka.heal()
    kafka.wait_in_sync(topic)
    assert kafka.read_all(topic, expected=1) == {0: records([b"before"])}


def test_all_clusters_are_healed_together(kafka_3: KafkaCluster) -> None:
    kafka_3.suspend(1)
    kafka_3.kill(2)
    KafkaCluster.heal_all()
    assert [kafka_3.metadata(each).brokers for each in kafka_3.node_ids] == [{1, 2, 3}] * 3


def test_a_restarted_broker_keeps_its_port_and_its_records(hurt: tuple[KafkaCluster, str]) -> None:
    kafka, topic = hurt
    node_id = kafka.leader(topic)
    pid = kafka.pid(node_id)
    kafka.restart(node_id)
    assert kafka.pid(node_id) != pid
    assert kafka.metadata(node_id).brokers == set(kafka.node_ids)


def test_a_partition_can_be_moved(hurt: tuple[KafkaCluster, str]) -> None:
    kafka, topic = hurt
    before = kafka.leader(topic)
    after, other = (node_id for node_id in kafka.node_ids if node_id != before)
    kafka.move_leader(topic, 0, [after, other])
    assert kafka.metadata(other, [topic]).topics[topic][0].replicas == (after, other)
    assert kafka.leader(topic) == after
    kafka.move_leader(topic, 0, [other, after])  # the leader stays among the replicas, and still hands over
    assert kafka.leader(topic) == other


def test_a_command_names_the_archive_of_its_classes_once_there_is_one(tmp_path: Path) -> None:
    dist = KafkaDist(RELEASES[NEWEST], tmp_path, Path("/nowhere/java-17/bin/java"))
    option = f"-XX:SharedArchiveFile={tmp_path}/java-17.jsa"
    assert option not in java_command(dist, tmp_path, "Main", [])
    archive_of(dist).touch()
    assert option in java_command(dist, tmp_path, "Main", [])


@pytest.mark.kafka
def test_close_leaves_no_process_and_no_data(tmp_path: Path) -> None:
    with KafkaCluster("2.8.2", directory=tmp_path / "kafka") as kafka:
        started = [process for process in descendants() if str(tmp_path) in " ".join(process.cmdline())]
        assert len(started) == 2  # with its ZooKeeper
        assert kafka.pid(1) in {process.pid for process in started}
    assert not any(process.is_running() for process in started)
    assert not (tmp_path / "kafka").exists()


@pytest.mark.kafka
def test_a_broker_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"(?s)broker 1 ended with code 1.*num\.partitions"),
        KafkaCluster(config={"num.partitions": "many"}, directory=tmp_path / "kafka"),
    ):
        pass
