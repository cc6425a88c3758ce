"""Spark, daemons and real Kafka: the audit finds all messages of a pipeline, also after kills."""

from __future__ import annotations

import io
import json
import re
import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer

from bruce_mp.spark.audit.follow import Follow, follow
from bruce_mp.spark.audit.report import AuditVerdict
from bruce_mp.spark.audit.run import Audit, audit
from bruce_mp.spark.cli import main
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.pipelines.retention import RetentionCheck
from support.daemon import Daemon
from support.kafka_dist import NEWEST
from support.spark_commands import Command, bruce_spark, standalone_cluster
from support.stream_sink import StreamSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

SINK: Final = {"timeoutMs": "120000", "connectTimeoutMs": "60000"}
ROWS: Final = 24_000
DAY_MS: Final = 86_400_000
CENTURY_S: Final = 100 * 365 * DAY_MS // 1000


def quiet() -> Progress:
    return Progress("test", io.StringIO())


@pytest.fixture
def kafka(kafka_of: Callable[[str], KafkaCluster]) -> KafkaCluster:
    """Return one broker."""
    return kafka_of(NEWEST)


def daemon_in(kafka: KafkaCluster, directory: Path) -> Daemon:
    directory.mkdir()
    settings = {"input.unix_stream.enable": "true", "input.unix_stream.path": f'"{directory}/stream"'}
    return Daemon(directory, kafka.bootstrap, settings)


@pytest.fixture
def daemon(kafka_3: KafkaCluster, tmp_path: Path) -> Iterator[Daemon]:
    with daemon_in(kafka_3, tmp_path / "daemon") as running:
        yield running


def write_input(spark: SparkSession, directory: Path, files: int) -> None:
    spark.range(0, ROWS, 1, files).selectExpr("cast(id as string) as value").write.parquet(f"{directory}/in")


def start_backfill(directory: Path, topic: str, socket: str, *words: str, master: str = "local[1,4]") -> Command:
    options = [f"--option={key}={value}" for key, value in SINK.items()]
    places = [f"--checkpoint={directory}/checkpoint", f"--ledger={directory}/ledger"]
    what = ["--format=parquet", "--files-per-chunk=1", f"--socket={socket}", f"--topic={topic}"]
    return bruce_spark(directory, "backfill", f"{directory}/in", *what, *places, *options, *words, master=master)


def audit_of(spark: SparkSession, kafka: KafkaCluster, directory: Path, topic: str) -> AuditVerdict:
    return audit(spark, Audit(kafka.bootstrap, [topic], [f"{directory}/ledger"], f"{directory}/audit"), quiet())


def values_in(kafka: KafkaCluster, topic: str) -> list[bytes]:
    return [record.value or b"" for records in kafka.read_all(topic, ROWS).values() for record in records]


def check(spark: SparkSession, kafka: KafkaCluster, directory: Path, topic: str) -> int:
    """Check that all rows arrived and the audit agrees; return the number of copies."""
    found = values_in(kafka, topic)
    assert set(found) == {b"%d" % number for number in range(ROWS)}
    verdict = audit_of(spark, kafka, directory, topic)
    copies = len(found) - ROWS
    assert verdict == AuditVerdict(ROWS, ROWS, discarded=0, missing=0, doubled=copies, out_of_order=0, unknown=0)
    return copies


@pytest.mark.soak
def test_a_backfill_survives_killed_brokers_and_daemons(
    spark: SparkSession, kafka_3: KafkaCluster, daemon: Daemon, tmp_path: Path
) -> None:
    kafka_3.create_topic("spark-killed", partitions=3, replication=3)
    write_input(spark, tmp_path, 6)
    running = start_backfill(tmp_path, "spark-killed", f"{tmp_path}/daemon/stream", "--rate=3000")
    daemon.wait_received(ROWS // 6, 120)
    victim = kafka_3.leader("spark-killed")
    kafka_3.kill(victim)
    daemon.wait_received(ROWS // 2 + 100, 120)
    daemon.kill_all()
    daemon.start()
    kafka_3.restart(victim)
    assert running.wait() == 0
    assert re.search(r"24,000 messages delivered, .*, 6 chunks\n", running.output())
    assert check(spark, kafka_3, tmp_path, "spark-killed") == 0, "the attempt that was hit had not ended"


@pytest.mark.soak
def test_a_killed_stream_resumes_from_its_checkpoint(
    spark: SparkSession, kafka_3: KafkaCluster, daemon: Daemon, tmp_path: Path
) -> None:
    kafka_3.create_topic("spark-checkpoint", partitions=3, replication=3)
    write_input(spark, tmp_path, 6)
    socket = f"{tmp_path}/daemon/stream"
    first = start_backfill(tmp_path, "spark-checkpoint", socket, "--rate=3000")
    daemon.wait_received(ROWS // 2 + 100, 120)
    first.kill()
    assert start_backfill(tmp_path, "spark-checkpoint", socket).wait() == 0
    assert check(spark, kafka_3, tmp_path, "spark-checkpoint") == 0, "the only task of the chunk had not ended"


@pytest.mark.soak
def test_two_workers_write_to_separate_daemons(spark: SparkSession, kafka_3: KafkaCluster, tmp_path: Path) -> None:
    kafka_3.create_topic("spark-cluster", partitions=3, replication=3)
    write_input(spark, tmp_path, 2)
    sockets = [{"BRUCE_STREAM": f"{tmp_path}/daemon-{number}/stream"} for number in range(2)]
    with (
        daemon_in(kafka_3, tmp_path / "daemon-0") as one,
        daemon_in(kafka_3, tmp_path / "daemon-1") as two,
        standalone_cluster(tmp_path / "cluster", sockets) as master,
    ):
        words = ["--tasks-per-chunk=8", "--conf=spark.executor.memory=512m", "--rate=3000"]
        running = start_backfill(tmp_path, "spark-cluster", "$BRUCE_STREAM", *words, master=master)
        assert running.wait() == 0
        received = [one.wait_settled(1).received, two.wait_settled(1).received]
    assert sum(received) == ROWS
    assert min(received) > 0
    assert check(spark, kafka_3, tmp_path, "spark-cluster") == 0


def plant(kafka: KafkaCluster, topic: str, ledger: Path, sequence: list[int], promised: int) -> None:
    """Write messages with stamps of the sink into the topic without a daemon."""
    producer = Producer(kafka.librdkafka_config)
    now = time.time_ns() // 1_000_000
    for number in sequence:
        stamp = b"%016d %013d planted/-1/0/0" % (number, now)
        producer.produce(topic, b"%d" % number, partition=0, headers=[("bruce.stamp", stamp)])
    assert producer.flush(60) == 0
    counts = {(topic, now - now % 60_000): promised}
    write_ledger(str(ledger), [TaskResult(TaskAttempt("planted", -1, 0, 0), "host", counts, "delivered", stamped=True)])


@pytest.mark.usefixtures("spark_defaults")
def test_planted_faults_are_named_continuously(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.create_topic("spark-planted", partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    order = [0, 1, 2, 4, 5, 5, 6, 8, 7, 9]
    plant(kafka, "spark-planted", tmp_path / "ledger", order, 10)
    plan = Audit(kafka.bootstrap, ["spark-planted"], [f"{tmp_path}/ledger"], f"{tmp_path}/audit")
    followed = Follow(plan, every_s=1, lateness_s=CENTURY_S, until_idle_s=1)  # so one report, at the end
    (verdict,) = follow(spark, followed, progress=quiet())
    expected = AuditVerdict(sent=10, delivered=9, discarded=0, missing=1, doubled=1, out_of_order=1, unknown=0)
    assert verdict == expected
    rows = spark.read.parquet(f"{tmp_path}/audit/problems").collect()
    named = {(row["problem"], row["first"], row["last"]) for row in rows}
    assert named == {("missing", 3, 3), ("doubled", 5, 5), ("out of order", 7, 7)}
    (row,) = spark.read.parquet(f"{tmp_path}/audit/balance").collect()
    assert row["p50_ms"] is not None
    plant(kafka, "spark-planted", tmp_path / "ledger-2", [3], 0)
    (verdict,) = follow(spark, followed, progress=quiet())
    assert (verdict.missing, verdict.delivered) == (0, 10), "it goes on where it was"


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"retention.ms": "3600000"}, "its retention.ms of 1.0 h"),
        ({"retention.ms": str(9 * DAY_MS)}, None),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact,delete"}, "its retention.ms of 1.0 h"),
        ({"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}, None),
    ],
    ids=["short", "long", "for ever", "compacted", "both", "append time"],
)
def test_old_timestamps_are_compared_with_the_retention_of_the_topic(
    spark: SparkSession, kafka: KafkaCluster, config: dict[str, str], limit: str | None
) -> None:
    topic = f"spark-retention-{'-'.join(config.values()).replace(',', '-')}"
    kafka.create_topic(topic, config=config)
    warning = RetentionCheck(spark, {"kafka.bootstrap.servers": kafka.bootstrap}).warning
    now_ms = time.time_ns() // 1_000_000
    assert warning({topic: now_ms - 60_000}) is None
    text = warning({topic: now_ms - 8 * DAY_MS})
    assert text is None if limit is None else text is not None and f"up to 8 days old, more than {limit}: " in text
    assert limit is None or "--bootstrap" not in str(text), "the topic's own retention counted"


def test_old_timestamps_of_an_unknown_topic_are_compared_with_the_default(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    warning = RetentionCheck(spark, {"kafka.bootstrap.servers": kafka.bootstrap}).warning
    now_ms = time.time_ns() // 1_000_000
    assert warning({"spark-never-made": now_ms - 6 * DAY_MS}) is None
    text = warning({"spark-never-made": now_ms - 8 * DAY_MS})
    assert text is not None
    assert "Kafka's default retention of 7 days" in text
    assert text.endswith("The brokers did not answer with the retention of the topic.")


@pytest.mark.usefixtures("spark")  # the command takes the running session
def test_a_backfill_warns_of_rows_that_the_topic_would_delete(
    kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic("spark-old", config={"retention.ms": "3600000"})
    (tmp_path / "a.json").write_text(json.dumps({"at": time.time_ns() // 1_000_000 - 2 * 3_600_000}))
    with StreamSink(tmp_path / "s") as sink:
        what = ["--format=json", "--timestamp=timestamp_millis(at)", "--topic=spark-old", f"--socket={sink.path}"]
        places = [f"--checkpoint={tmp_path}/checkpoint", f"--bootstrap={kafka.bootstrap}"]
        assert main(["backfill", f"{tmp_path}/a.json", *what, *places]) == 0
    shown = capsys.readouterr().err
    assert "timestamps of topic spark-old are up to 2.0 h old, more than its retention.ms of 1.0 h" in shown
    assert len(sink.messages) == 1
