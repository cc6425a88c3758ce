"""Sequence numbers on real brokers: topics without numbers, and brokers that forget the producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import KafkaAdminClient

from support.daemon import Daemon
from support.kafka_dist import NEWEST
from support.processes import wait_until
from support.read_back import read_back_kafka
from support.traffic import Load, assert_all_there, deliver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.kafka]

TOPIC: Final = "numbered"
LOAD: Final = Load((TOPIC,), senders=1, messages=500, largest=300)
PARTITIONS: Final = 2
TIMEOUT_S: Final = 60.0


def forget(cluster: KafkaCluster) -> None:
    """Delete all records, and with them the old brokers' state of producers."""
    ends = {partition: records[-1].offset + 1 for partition, records in cluster.read_all(TOPIC).items() if records}
    assert len(ends) == PARTITIONS
    places = [TopicPartition(TOPIC, partition, end) for partition, end in ends.items()]
    admin = AdminClient(cluster.librdkafka_config)
    for deletion in admin.delete_records(places).values():
        deletion.result(TIMEOUT_S)


def test_a_topic_in_an_old_message_format_is_written_without_sequence_numbers(
    tmp_path: Path, kafka_of: Callable[[str], KafkaCluster]
) -> None:
    cluster = kafka_of("2.8.2")
    cluster.create_topic("unnumbered", PARTITIONS, config={"message.format.version": "0.10.2"})
    with Daemon(tmp_path, cluster.bootstrap) as daemon:
        load = Load(("unnumbered",), senders=1, messages=2000, largest=300)
        deliver(load, daemon)
        assert "its message format has no sequence numbers" in daemon.log()
        assert daemon.books().possible_duplicates == 0
    assert_all_there(load, read_back_kafka(cluster, load.topics))


def test_unknown_producer_id_from_an_old_broker_loses_no_message(
    tmp_path: Path, kafka_of: Callable[[str], KafkaCluster]
) -> None:
    """Numbers continue behind the deleted ones: UNKNOWN_PRODUCER_ID."""
    cluster = kafka_of("1.1.1")
    cluster.create_topic(TOPIC, PARTITIONS)
    with Daemon(tmp_path, cluster.bootstrap) as daemon:
        deliver(LOAD, daemon)
        assert_all_there(LOAD, read_back_kafka(cluster, [TOPIC]))
        forget(cluster)
        deliver(LOAD, daemon)
        assert "UNKNOWN_PRODUCER_ID" in daemon.log()
        assert daemon.books().possible_duplicates > 0
    assert_all_there(LOAD, read_back_kafka(cluster, [TOPIC]))


def test_a_current_broker_accepts_any_sequence_after_the_producer_id_expires(
    tmp_path: Path, kafka_of: Callable[[str], KafkaCluster]
) -> None:
    cluster = kafka_of(NEWEST)
    cluster.create_topic(TOPIC, PARTITIONS)
    with Daemon(tmp_path, cluster.bootstrap) as daemon:
        deliver(LOAD, daemon)
        assert_all_there(LOAD, read_back_kafka(cluster, [TOPIC]))
        forget(cluster)
        let_expire(cluster)
        deliver(LOAD, daemon)
        assert daemon.books().possible_duplicates == 0
    assert_all_there(LOAD, read_back_kafka(cluster, [TOPIC]))


def set_expiration(cluster: KafkaCluster, operation: AlterConfigOpType) -> None:
    """Set or delete the life of producer ids in the broker's settings."""
    entry = ConfigEntry("producer.id.expiration.ms", "500", incremental_operation=operation)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient(cluster.librdkafka_config)  # its end would end its requests
    for change in admin.incremental_alter_configs([broker]).values():
        change.result(TIMEOUT_S)


def let_expire(cluster: KafkaCluster) -> None:
    """Wait until the broker, which forgets producers early meanwhile, has no producer of the topic."""
    set_expiration(cluster, AlterConfigOpType.SET)
    try:
        wait_expired(cluster)
    finally:
        set_expiration(cluster, AlterConfigOpType.DELETE)


def wait_expired(cluster: KafkaCluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    places = [kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    try:
        wait_until(
            lambda: not any(state.active_producers for state in admin.describe_producers(places).values()),
            "the producers to be forgotten",
        )
    finally:
        admin.close()
