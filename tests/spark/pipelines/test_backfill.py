"""Backfill on real Spark: every format, expressions, the state after an interruption, and the dry run."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from bruce_mp.protocol.client.barrier import Barrier, BarrierAnswer, BarrierStatus
from bruce_mp.spark.errors import OptionError, SchemaError
from bruce_mp.spark.pipelines.backfill import Backfill, FileProgress, backfill, dry_run
from bruce_mp.spark.pipelines.progress import Progress
from support.stream_sink import StreamSink, all_delivered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PLAIN: Final = {"topic": "t", "stamp": "false", "connectTimeoutMs": "100"}


def quiet() -> Progress:
    return Progress("backfill", io.StringIO())


def plan_for(directory: Path, socket: str, **changed: Any) -> Backfill:
    given = {"path": str(directory / "in"), "format": "json", "checkpoint": str(directory / "check"), **changed}
    return Backfill(**{"sink": {**PLAIN, "bruce.socket": socket}, **given})


def write_lines(directory: Path, name: str, rows: list[Any]) -> None:
    (directory / "in").mkdir(exist_ok=True)
    (directory / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.usefixtures("spark_defaults")
def test_rows_become_json_and_expressions_fill_the_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "a.json", [{"id": number, "at": 1000 * number, "name": "é"} for number in range(20)])
    with StreamSink(tmp_path / "s") as sink:
        plan = plan_for(
            tmp_path, sink.path, key="cast(id as string)", topic="concat('t', id % 2)", partition_key="id",
            timestamp="timestamp_millis(at)",
        )  # fmt: skip
        out = io.StringIO()
        assert backfill(spark, plan, Progress("backfill", out)) == 20
    messages = sorted(sink.parsed, key=lambda message: message.timestamp_ms)
    for number, message in enumerate(messages):
        assert json.loads(message.value) == {"id": number, "at": 1000 * number, "name": "é"}
        assert (message.key, message.topic) == (b"%d" % number, b"t%d" % (number % 2))
        assert (message.partition_key, message.timestamp_ms) == (number, 1000 * number)
    shown = out.getvalue().splitlines()
    assert re.fullmatch(r"backfill: 20 messages delivered, [0-9,]+/s, [^,]+, 1 chunk", shown[-1])
    [warning] = [text for text in shown if "WARNING" in text]
    assert "days old, more than Kafka's default retention of 7 days: Kafka may delete" in warning


def test_parquet_csv_and_text_files_are_sent(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 3, 1, 1).selectExpr("cast(id as string) as value").write.parquet(f"{tmp_path}/parquet")
    (tmp_path / "c.csv").write_text("a,b\n1,x\n2,\n")
    (tmp_path / "t.text").write_text("one\ntwo\n")
    with StreamSink(tmp_path / "s") as sink:
        for kind, path in (("parquet", "parquet/*.parquet"), ("csv", "c.csv"), ("text", "t.text")):
            plan = plan_for(
                tmp_path, sink.path, path=str(tmp_path / path), format=kind, checkpoint=str(tmp_path / f"check-{kind}")
            )
            backfill(spark, plan, quiet())
    expected = [b"0", b"1", b"2", b'{"a":"1","b":"x"}', b'{"a":"2"}', b"one", b"two"]
    assert Counter(sink.values) == Counter(expected)


def test_a_backfill_resumes_at_the_failed_chunk(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        write_lines(tmp_path, f"{number}.json", [{"file": number}] * 5)
    good = 2

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        if len(sink.connections) > good:
            return BarrierAnswer(barrier.token, BarrierStatus.TIMED_OUT, received, 0, 0)
        return all_delivered(barrier, received)

    with StreamSink(tmp_path / "s", answer) as sink:
        plan = plan_for(tmp_path, sink.path, files_per_chunk=1)
        with pytest.raises(StreamingQueryException) as caught:
            backfill(spark, plan, quiet())
        assert "not all messages were delivered in time" in str(caught.value)
        del sink.connections[good:]
        first = Counter(sink.values)
        sink.connections.clear()
        good = 100
        assert backfill(spark, plan, quiet()) == 10
        assert first + Counter(sink.values) == {b'{"file":%d}' % number: 5 for number in range(4)}
        assert backfill(spark, plan, quiet()) == 0
        assert len(sink.connections) == 2


@pytest.mark.parametrize(("reader", "sent"), [({}, 2), ({"maxfileage": "1d"}, 1)])
def test_a_later_run_sends_older_files_unless_the_reader_has_a_maximum_age(
    spark: SparkSession, tmp_path: Path, reader: dict[str, str], sent: int
) -> None:
    write_lines(tmp_path, "first.json", [{"id": 1}])
    with StreamSink(tmp_path / "s") as sink:
        plan = plan_for(tmp_path, sink.path, reader=reader)
        assert backfill(spark, plan, quiet()) == 1
        for name in ("new.json", "old.json"):
            write_lines(tmp_path, name, [{"id": 2}])
        month_ago_s = time.time() - 30 * 86_400
        os.utime(tmp_path / "in" / "old.json", (month_ago_s, month_ago_s))
        assert backfill(spark, plan, quiet()) == sent


def test_the_progress_counts_files_of_earlier_runs(tmp_path: Path) -> None:
    sources, commits = tmp_path / "sources" / "0", tmp_path / "commits"
    sources.mkdir(parents=True)
    commits.mkdir()
    entries = [{"path": f"file:///{number}", "timestamp": 1, "batchId": number // 3} for number in range(7)]
    (sources / "1.compact").write_text("v1\n" + "".join(json.dumps(entry) + "\n" for entry in entries[:6]))
    (sources / "1").write_text("v1\n" + "".join(json.dumps(entry) + "\n" for entry in entries[3:6]))
    (sources / "2").write_text("v1\n" + json.dumps(entries[6]) + "\n")
    for number in range(2):
        (commits / str(number)).write_text("v1\n{}")
        (commits / f".{number}.crc").write_bytes(b"")
    files = FileProgress.read(str(tmp_path), 10, 2)
    assert (files.last_committed, files.done_fraction()) == (1, 0.6), "chunk 2 is planned, but not committed"
    assert files.done_fraction(0.5) == pytest.approx(0.65)
    files.last_committed = 2
    assert files.done_fraction() == pytest.approx(0.7)
    files.last_committed = 9
    assert files.done_fraction() == 1
    assert FileProgress.read(str(tmp_path / "none"), 10, 2).done_fraction() == 0


def test_a_chunk_can_be_split(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "a.json", [{"id": number} for number in range(90)])
    with StreamSink(tmp_path / "s") as sink:
        backfill(spark, plan_for(tmp_path, sink.path, tasks_per_chunk=3), quiet())
    assert [len(connection.messages) for connection in sink.connections] == [30, 30, 30]


def test_a_dry_run_counts_sendable_and_invalid_rows(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "a.json", [{"to": "a", "text": "x"}] * 3 + [{"to": None, "text": "y"}])
    write_lines(tmp_path, "b.json", [{"to": "b", "text": "z" * 2000}, {"to": "c" * 250, "text": "x"}])
    sink = {"bruce.socket": "/nobody", "MAXRECORDBYTES": "1000"}
    plan = plan_for(tmp_path, "/nobody", topic="to", value="text", sink=sink)
    found = dry_run(spark, plan)
    assert found.topics == {"a": (3, 3)}
    problems = ("no topic", "larger than maxRecordBytes", "a topic that Kafka does not allow")
    assert found.bad_row_counts == dict.fromkeys(problems, 1)
    assert found.message_count == 3
    assert dry_run(spark, plan_for(tmp_path, "/nobody", topic="to", value="text")).topics["t"] == (1, 1)


@pytest.mark.parametrize("names", [["user", "amount"], ["x0", "x1"]])  # also names as Spark makes them up
def test_a_csv_file_with_columns_in_another_order_is_refused(
    spark: SparkSession, tmp_path: Path, names: list[str]
) -> None:
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + "ann,2\n" * 9)
    (tmp_path / "b.csv").write_text(",".join(reversed(names)) + "\n2,ann\n")
    plan = plan_for(tmp_path, "/nobody", path=f"{tmp_path}/*.csv", format="csv")
    with pytest.raises(Exception, match=r"FAILED_READ_FILE[^\n]*/b\.csv"):
        dry_run(spark, plan)
    assert dry_run(spark, replace(plan, reader={"enforceschema": "true"})).message_count == 10


def test_a_malformed_csv_line_is_a_bad_row_whatever_columns_are_selected(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,amount\nann,2\nbob\n")
    found = dry_run(spark, plan_for(tmp_path, "/nobody", path=str(tmp_path), format="csv", value="user"))
    assert (found.message_count, found.bad_row_counts) == (1, {"malformed input": 1})


@pytest.mark.parametrize("header", [",a", "a,A"])
def test_a_csv_header_may_have_empty_and_equal_names(spark: SparkSession, tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n0,1\n")
    assert dry_run(spark, plan_for(tmp_path, "/nobody", path=str(tmp_path), format="csv")).message_count == 1


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_malformed_lines_are_bad_rows_unless_another_mode_is_chosen(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lines = {"json": '{"id": 1}\n{"id": \n{"id": 3}\n', "csv": "id\n1\n2,too,many\n3\n"}
    (tmp_path / f"a.{kind}").write_text(lines[kind])
    with StreamSink(tmp_path / "s") as sink:
        chosen = {"path": str(tmp_path / f"a.{kind}"), "format": kind}
        found = dry_run(spark, plan_for(tmp_path, sink.path, **chosen))
        assert (found.message_count, found.bad_row_counts) == (2, {"malformed input": 1})
        with pytest.raises(StreamingQueryException, match="its input is malformed: "):
            backfill(spark, plan_for(tmp_path, sink.path, **chosen), quiet())
        sink.connections.clear()
        dead = {**PLAIN, "bruce.socket": sink.path, "deadLetterPath": str(tmp_path / "dead")}
        plan = plan_for(tmp_path, sink.path, **chosen, sink=dead, checkpoint=str(tmp_path / "second"))
        backfill(spark, plan, quiet())
        assert len(sink.values) == 2
        assert spark.read.parquet(f"{tmp_path}/dead").count() == 1
        fails = "if(_corrupt_record is null, 1, raise_error('a malformed row has no columns'))"
        strict = replace(plan, checkpoint=str(tmp_path / "third"), partition_key=fails)
        backfill(spark, strict, Progress("backfill", shown := io.StringIO()))
        assert "3 rows delivered or written as dead letters, " in shown.getvalue()
        assert spark.read.parquet(f"{tmp_path}/dead").count() == 2
        assert sum(dry_run(spark, replace(plan, mode="permissive")).topics["t"][:1]) == 3
        with pytest.raises(Exception, match=r"MALFORMED_RECORD|FAILFAST|FAILED_READ_FILE"):
            dry_run(spark, replace(plan, mode="failfast"))
        with pytest.raises(OptionError, match="Mode 'drop' is not known"):
            dry_run(spark, replace(plan, mode="drop"))


def test_a_dry_run_rejects_invalid_options_and_columns(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "a.json", [{"id": 1}])
    with pytest.raises(SchemaError, match="Column 'key' is bigint"):
        dry_run(spark, plan_for(tmp_path, "/nobody", key="id"))
    with pytest.raises(OptionError, match=r"Option 'kafka\.acks'"):
        dry_run(spark, plan_for(tmp_path, "/nobody", sink={"bruce.socket": "/s", "kafka.acks": "1"}))
    with pytest.raises(OptionError, match="Format 'orc' is not known"):
        dry_run(spark, plan_for(tmp_path, "/nobody", format="orc"))
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        dry_run(spark, plan_for(tmp_path, "/nobody", path=str(tmp_path / "none")))
