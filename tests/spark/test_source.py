"""The data source on real Spark: automatic lookup, checks on the driver, one connection a task, one ledger a commit."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException

import bruce_mp.spark
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import Barrier, BarrierAnswer, BarrierStatus
from bruce_mp.protocol.client.key_hashes import partition_key_of
from bruce_mp.spark import write
from bruce_mp.spark.session import temporary_settings
from support.stream_sink import StreamSink, all_delivered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PLAIN: Final = {"topic": "t", "stamp": "false", "timeoutMs": "60000", "connectTimeoutMs": "100"}


def writer(frame: DataFrame, sink: StreamSink | str, **options: Any) -> DataFrameWriter:
    path = sink if isinstance(sink, str) else sink.path
    chosen = {**PLAIN, "bruce.socket": path, **options}
    return frame.write.format("bruce").mode("append").options(**{k: v for k, v in chosen.items() if v is not None})


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as value")


def ledger_rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*.json")) for line in file.read_text().splitlines()]


def test_a_batch_job_writes_without_registration(spark: SparkSession, tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        writer(numbers(spark, 25_000), sink, ledger=str(tmp_path / "ledger")).save()
    assert Counter(sink.values) == Counter(b"%d" % number for number in range(25_000))
    assert [connection.marks for connection in sink.connections] == [[("begin", 0), ("end", 12_500)]] * 2
    rows = ledger_rows(tmp_path / "ledger")
    assert sum(row["rows"] for row in rows) == 25_000
    assert {(row["topic"], row["batch"], row["attempt"]) for row in rows} == {("t", -1, 0)}
    assert sorted({row["partition"] for row in rows}) == [0, 1]
    assert len({row["query"] for row in rows}) == 1


def test_save_accepts_the_path_and_columns_override_options(spark: SparkSession, tmp_path: Path) -> None:
    row = "'own' as topic, 'k' as key, 'v' as value, 7 as partition_key, timestamp_millis(1234) as timestamp"
    with StreamSink(tmp_path / "s") as sink:
        writer(spark.range(1).selectExpr(*row.split(", ")), sink, **{"bruce.socket": None}).save(sink.path)
    (message,) = sink.parsed
    assert (message.topic, message.key, message.value) == (b"own", b"k", b"v")
    assert (message.partition_key, message.timestamp_ms) == (7, 1234)


def test_an_explicitly_registered_source_writes(spark: SparkSession, tmp_path: Path) -> None:
    bruce_mp.spark.register(spark)
    with StreamSink(tmp_path / "s") as sink:
        writer(numbers(spark, 10), sink).save()
    assert len(sink.messages) == 10


def test_types_of_other_columns_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    columns = (
        "'v' as value", "4294967295L as partition_key", "timestamp_ntz'1970-01-01 00:00:01' as timestamp",
        "array(struct('h' as key, 'text' as value)) as headers",
    )  # fmt: skip
    with StreamSink(tmp_path / "s") as sink:
        writer(spark.range(1).selectExpr(*columns), sink).save()
    (message,) = sink.parsed
    assert (message.partition_key, message.timestamp_ms, message.headers) == (2**32 - 1, 1000, ((b"h", b"text"),))


def test_a_timestamp_without_zone_is_in_the_zone_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    times = spark.range(1).selectExpr("'v' as value", "timestamp_ntz'1970-01-01 01:00:01' as timestamp")
    with StreamSink(tmp_path / "s") as sink, temporary_settings(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        writer(times, sink).save()
    (message,) = sink.parsed
    assert message.timestamp_ms == 1000


def test_a_partitioner_turns_keys_into_partition_keys(spark: SparkSession, tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        writer(spark.range(1).selectExpr("'v' as value", "'key' as key"), sink, partitioner="murmur2").save()
    (message,) = sink.parsed
    assert message.partition_key == partition_key_of(b"key", "murmur2")


def test_write_needs_neither_mode_nor_registration(spark: SparkSession, tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        write(numbers(spark, 10), sink.path, topic="t", stamp=False, ledger=tmp_path / "ledger")
    assert Counter(sink.values) == Counter(b"%d" % number for number in range(10))
    assert sum(row["rows"] for row in ledger_rows(tmp_path / "ledger")) == 10


def test_reading_names_the_source_that_reads(spark: SparkSession) -> None:
    def create(schema: str) -> None:
        try:
            spark.sql(f"create table readable {schema} using bruce options (path '/run/s')")
            spark.table("readable").collect()
        finally:
            spark.sql("drop table if exists readable")

    reads: list[Callable[[], object]] = [
        lambda: spark.read.format("bruce").load("/run/s"),
        lambda: spark.read.format("bruce").schema("value string").load("/run/s").collect(),
        lambda: spark.readStream.format("bruce").load("/run/s"),
        lambda: create(""),
        lambda: create("(value string)"),
    ]
    for read in reads:
        with pytest.raises(PySparkException, match=r"\[BRUCE_WRITE_ONLY\] .* read topics with Spark's Kafka source"):
            read()


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("id", {}, "[BRUCE_SCHEMA] Column 'id' is not known"),
        ("id as value", {}, "[BRUCE_SCHEMA] Column 'value' is bigint: it must be binary or string."),
        ("'v' as value", {"topic": None}, "[BRUCE_SCHEMA] There is neither a column 'topic' nor"),
        ("'v' as value", {"acks": "all"}, "[BRUCE_OPTION] Option 'acks' is 'all': give"),
        ("'v' as value", {"kafka.acks": "1"}, "[BRUCE_OPTION] Option 'kafka.acks': connections to Kafka belong"),
        ("'v' as value", {"bruce.socket": None}, "[BRUCE_OPTION] Name the daemon's socket"),
    ],
)
def test_invalid_columns_and_options_fail_before_any_task_runs(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        writer(spark.range(1).selectExpr(columns), str(tmp_path / "nobody"), **options).save()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"
    assert text in str(caught.value)


def test_overwrite_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="cannot empty a topic"):
        writer(numbers(spark, 1), str(tmp_path / "nobody")).mode("overwrite").save()


def test_no_daemon_fails_the_job_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        PythonException, match=r"\[BRUCE_TASK\] .* no daemon accepts connections: No such file or directory"
    ):
        writer(numbers(spark, 1), str(tmp_path / "nobody")).save()


def test_the_ledger_has_only_the_successful_attempt_of_a_retried_task(spark: SparkSession, tmp_path: Path) -> None:
    failures = threading.Semaphore(2)

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        if failures.acquire(blocking=False):
            return BarrierAnswer(barrier.token, BarrierStatus.TIMED_OUT, received, 0, 0)
        return all_delivered(barrier, received)

    with StreamSink(tmp_path / "s", answer) as sink:
        writer(numbers(spark, 100, 1), sink, ledger=str(tmp_path / "ledger")).save()
    names = [connection.name for connection in sink.connections if connection.name]
    assert len(names) == 3
    assert len(set(names)) == 1, "all attempts of a task have its name"
    assert [(row["attempt"], row["rows"]) for row in ledger_rows(tmp_path / "ledger")] == [(2, 100)]


def test_a_permanently_failed_job_names_the_reason_and_writes_no_ledger(spark: SparkSession, tmp_path: Path) -> None:
    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(
            barrier.token, BarrierStatus.DONE, received, 0, received, {DiscardReason.BAD_TOPIC: received}
        )

    with (
        StreamSink(tmp_path / "s", answer) as sink,
        pytest.raises(
            PythonException, match=r"5 of 5 messages discarded \(BAD_TOPIC 5; topic t\)\. .*no topic t: create"
        ),
    ):
        writer(numbers(spark, 5, 1), sink, ledger=str(tmp_path / "ledger")).save()
    assert not list((tmp_path / "ledger").rglob("*.json"))


def test_a_null_topic_fails_or_becomes_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 4, 1, 1).selectExpr("if(id = 2, null, 't') as topic", "cast(id as string) as value")
    with StreamSink(tmp_path / "s") as sink:
        with pytest.raises(PythonException, match=r"\[BRUCE_ROW\] .*its topic is null"):
            writer(rows, sink, topic=None).save()
        sink.connections.clear()
        writer(rows, sink, topic=None, deadLetterPath=str(tmp_path / "dead")).save()
    assert sink.values == [b"0", b"1", b"3"]
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert (letter["value"], letter["reason"]) == ("2", "its topic is null, and there is no option 'topic'")


def run_stream(spark: SparkSession, directory: Path, sink: StreamSink) -> None:
    """Stream the new text files in `directory`/files, one for each micro-batch."""
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory / "files"))
    places = {"bruce.socket": sink.path, "ledger": f"{directory}/ledger", "checkpointLocation": f"{directory}/check"}
    options = {**PLAIN, **places}
    query = stream.writeStream.format("bruce").options(**options).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_a_stream_names_query_and_batch_and_resumes_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    files, ledger = tmp_path / "files", tmp_path / "ledger"
    files.mkdir()
    for number in range(3):
        (files / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(5)))
    with StreamSink(tmp_path / "s") as sink:
        run_stream(spark, tmp_path, sink)
        (files / "3.txt").write_text("3-0\n")
        run_stream(spark, tmp_path, sink)
    assert Counter(sink.values) == Counter(
        [b"%d-%d" % (file, line) for file in range(3) for line in range(5)] + [b"3-0"]
    )
    rows = ledger_rows(ledger)
    assert sorted((row["batch"], row["rows"]) for row in rows) == [(0, 5), (1, 5), (2, 5), (3, 1)]
    (query,) = {row["query"] for row in rows}
    assert sorted(file.name for file in ledger.glob("*.json")) == [f"{query}-{batch}.json" for batch in range(4)]


def test_complete_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    counts = rates.groupBy().count().selectExpr("cast(count as string) as value")
    stream = counts.writeStream.format("bruce").options(**PLAIN).outputMode("complete")
    with pytest.raises(Exception, match=r"\[BRUCE_OPTION\] Output mode 'complete'"):
        stream.option("checkpointLocation", str(tmp_path / "check")).start(str(tmp_path / "s")).awaitTermination(60)
