"""Faults in the log of a broker that had acknowledged everything: the audit names each message.

Parquet → backfill → daemon → embedded broker, which then loses a batch, has one twice and swaps two. The test compares
the audit's report with the broker's log, record by record, by separate code.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.spark.audit.kafka_source import MissingRecordsError
from bruce_mp.spark.audit.run import Audit, audit, read_samples
from bruce_mp.spark.audit.samples import describe_samples
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.pipelines.backfill import Backfill, backfill
from bruce_mp.spark.pipelines.progress import Progress
from support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process

TOPIC: Final = "planted"
ROWS: Final = 3_000
KEPT: Final = 2_900
MINUTE: Final = 1_700_000_040_000
Named = tuple[str, int]
"""Writer and sequence number of a message."""


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={TOPIC: 1}) as running:
        yield running


def stamps(broker: DevBroker) -> list[Named]:
    """Return the messages of the log in its order."""
    (records,) = broker.fetch(TOPIC)
    found = []
    for record in records:
        key, value = record.headers[-1]
        assert (key, value is not None) == ("bruce.stamp", True)
        sequence, _, author = (value or b"").decode().split(" ")
        found.append((author.rpartition("/")[0], int(sequence)))
    return found


def late(log: Sequence[Named]) -> set[Named]:
    """Return the messages that follow a later one of their writer and are no copies."""
    highest: dict[str, int] = {}
    found = set()
    for place, (writer, number) in enumerate(log):
        if number < highest.get(writer, -1) and (writer, number) not in log[:place]:
            found.add((writer, number))
        highest[writer] = max(number, highest.get(writer, -1))
    return found


def backfilled(spark: SparkSession, broker: DevBroker, directory: Path) -> None:
    """Backfill all rows through a daemon with small batches."""
    spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as value").write.parquet(f"{directory}/in")
    (directory / "daemon").mkdir()
    socket = f"{directory}/daemon/stream"
    settings = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": f'"{socket}"',
        "batching.produce_request_data_limit": "8k",
        "batching.message_max_bytes": 8192,
    }
    sink = {"bruce.socket": socket, "topic": TOPIC, "ledger": f"{directory}/ledger"}
    plan = Backfill(f"{directory}/in", "parquet", f"{directory}/checkpoint", sink)
    with Daemon(directory / "daemon", broker.bootstrap, settings) as daemon:
        backfill(spark, plan, progress=Progress("test", io.StringIO()))
        books = daemon.wait_settled(ROWS)
        assert (books.received, books.delivered) == (ROWS, ROWS)


def test_the_audit_names_each_message_that_the_broker_lost_doubled_and_moved(
    spark: SparkSession, broker: DevBroker, tmp_path: Path
) -> None:
    backfilled(spark, broker, tmp_path)
    before = stamps(broker)
    assert len(set(before)) == len(before) == ROWS
    plan = Audit(broker.bootstrap, [TOPIC], [f"{tmp_path}/ledger"], f"{tmp_path}/audit", samples_per_problem=1)
    assert audit(spark, plan, Progress("test", io.StringIO())).is_good
    assert describe_samples(read_samples(spark, plan)) == []
    broker.swap_batches(TOPIC, 0, ROWS // 4)
    broker.double_batch(TOPIC, 0, 0)
    broker.drop_batch(TOPIC, 0, ROWS // 2)
    after = stamps(broker)
    missing, copies = set(before) - set(after), {one for one, count in Counter(after).items() if count > 1}
    assert all((missing, copies, late(after))), "each fault was planted"
    verdict = audit(spark, plan, Progress("test", io.StringIO()))
    assert (verdict.missing, verdict.doubled, verdict.out_of_order) == (len(missing), len(copies), len(late(after)))
    assert verdict.delivered == ROWS - len(missing)
    named: dict[str, set[Named]] = {}
    for row in spark.read.parquet(f"{tmp_path}/audit/problems").collect():
        numbers = range(row["first"], row["last"] + 1)
        named.setdefault(row["problem"], set()).update((row["writer"], number) for number in numbers)
    assert named == {"missing": missing, "doubled": copies, "out of order": late(after)}
    check_samples(spark, broker, plan, {"doubled": copies, "out of order": late(after)})


def check_samples(spark: SparkSession, broker: DevBroker, plan: Audit, named: Mapping[str, set[Named]]) -> None:
    """Check that each problem of messages in Kafka is shown by one message of it, as the broker has it."""
    (records,), log = broker.fetch(TOPIC), stamps(broker)
    rows, shown = read_samples(spark, plan).collect(), describe_samples(read_samples(spark, plan))
    assert sorted(row["problem"] for row in rows) == sorted(named)
    at = {record.offset: number for number, record in enumerate(records)}
    for row in rows:
        number = at[row["offset"]]
        assert log[number] in named[row["problem"]]
        assert (row["topic"], row["partition"], row["key"], row["value"]) == (TOPIC, 0, None, records[number].value)
        place, content = f"{row['problem']}: {TOPIC}/0@{row['offset']} ", (records[number].value or b"").decode()
        assert [line for line in shown if line.startswith(place) and line.endswith(f' key null value "{content}"')]


def produced(broker: DevBroker, directory: Path) -> None:
    """Write messages with stamps in two batches, and their ledger."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for batch in (range(KEPT), range(KEPT, ROWS)):
        for number in batch:
            stamp = b"%016d %013d query/-1/0/0" % (number, MINUTE)
            producer.produce(TOPIC, b"v", partition=0, timestamp=MINUTE, headers=[("bruce.stamp", stamp)])
        assert producer.flush(60) == 0
    attempt = TaskAttempt("query", -1, 0, 0)
    write_ledger(
        f"{directory}/ledger", [TaskResult(attempt, "host", {(TOPIC, MINUTE): ROWS}, "delivered", stamped=True)]
    )


def test_an_audit_of_a_topic_without_its_last_records_names_them_and_leaves_no_old_report(
    spark: SparkSession, broker: DevBroker, tmp_path: Path
) -> None:
    produced(broker, tmp_path)
    plan = Audit(
        broker.bootstrap, [TOPIC], [f"{tmp_path}/ledger"], f"{tmp_path}/audit",
        kafka={"kafkaConsumer.pollTimeoutMs": "2000"},
    )  # fmt: skip
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit/report.html").touch()
    broker.drop_batch(TOPIC, 0, ROWS - 1)
    last = len(stamps(broker))
    assert last == KEPT
    with pytest.raises(MissingRecordsError) as failure:
        audit(spark, plan, Progress("test", io.StringIO()))
    assert not (tmp_path / "audit/report.html").exists()
    ends = f'{{"{TOPIC}":{{"0":{last}}}}}'
    assert f"offset {last} in time: topic {TOPIC}, partition 0 (to {ROWS - 1})." in str(failure.value)
    assert f"endingOffsets='{ends}'" in str(failure.value)
    before = replace(plan, kafka={"endingOffsets": ends})
    assert audit(spark, before, Progress("test", io.StringIO())).missing == ROWS - last
