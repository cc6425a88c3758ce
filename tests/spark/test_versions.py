"""Other releases of PySpark: `bruce_mp.spark.write` has the same options and guarantees with each."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.client.key_hashes import partition_key_of
from support.daemon import Daemon
from support.doc_pages import ROOT
from support.spark_versions import RELEASES, run_with, submit
from support.stream_sink import StreamSink

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.spark]

SUPPORT: Final = ROOT / "tests" / "support"
JOB: Final = SUPPORT / "spark_write_job.py"
TOPICS: Final = ("good", "broken", "streamed")
ROWS: Final = 1_000
GOOD: Final = [
    "cast(id as string) as value", "cast(id as string) as key", "timestamp_ntz'1970-01-01 00:00:01' as timestamp"
]  # fmt: skip
BROKEN: Final = [f"if(id = {ROWS - 10}, raise_error('broken'), cast(id as string)) as value"]


@pytest.mark.parametrize(
    "release", ["3.5", *(pytest.param(other, marks=pytest.mark.soak) for other in RELEASES if other != "3.5")]
)
def test_each_release_writes_with_the_same_guarantees(release: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(2):
        (files / f"{number}.txt").write_text(f"a-{number}\nb-{number}\n")
    stream = tmp_path / "stream"
    settings = {
        "input.unix_stream.enable": "true", "input.unix_stream.path": f'"{stream}"',
        "input.streams.spill_dir": f'"{tmp_path}"',
    }  # fmt: skip
    with DevBroker(topics=dict.fromkeys(TOPICS, 3)) as broker, Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        done = run_with(release, JOB, {"socket": str(stream), "jobs": jobs(tmp_path)})
        daemon.wait_settled(0)
        log = {topic: broker.fetch(topic) for topic in TOPICS}
    assert done["version"].startswith(release)
    first, again, broken, streamed, option, column = done["errors"]
    assert (first, again, streamed) == (None, None, None)
    assert "broken" in broken
    assert "[BRUCE_OPTION] Option 'kafka.acks'" in option
    assert "[BRUCE_SCHEMA] Column 'partition' is not possible" in column

    assert Counter(values_of(log["good"])) == Counter(b"%d" % number for number in range(ROWS))
    for partition, records in enumerate(log["good"]):
        assert {partition_key_of(record.key or b"") % 3 for record in records} <= {partition}
        assert {record.timestamp for record in records} <= {1000}
    assert all(int(value) < ROWS * 3 // 4 for value in values_of(log["broken"])), "a task that fails leaves nothing"
    assert sorted(values_of(log["streamed"])) == [b"a-0", b"a-1", b"b-0", b"b-1"]
    rows = [json.loads(line) for file in (tmp_path / "ledger").glob("*.json") for line in file.read_text().splitlines()]
    sums = Counter[tuple[str, str]]()
    for row in rows:
        sums[row["query"], row["topic"]] += row["rows"]
    assert sums == {("once", "good"): ROWS, ("stream-0", "streamed"): 2, ("stream-1", "streamed"): 2}


def jobs(directory: Path) -> list[dict[str, Any]]:
    shared = {"ledger": f"{directory}/ledger", "timeoutMs": 60_000}
    once = {"topic": "good", "runId": "once", "partitioner": "murmur2", **shared}
    return [
        {"rows": ROWS, "columns": GOOD, "options": once},
        {"rows": ROWS, "columns": GOOD, "options": once},
        {"rows": ROWS, "columns": BROKEN, "options": {"topic": "broken", **shared}},
        {"stream": f"{directory}/files", "options": {"topic": "streamed", **shared}},
        {"rows": 1, "columns": GOOD, "options": {"topic": "good", "kafka.acks": "all"}},
        {"rows": 1, "columns": ["'v' as value", "1 as partition"], "options": {"topic": "good"}},
    ]


def values_of(log: list[list[Any]]) -> list[bytes]:
    return [record.value for records in log for record in records]


@pytest.mark.soak
def test_a_backfill_counts_its_messages_under_connect(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"at": {number}}}\n' * 5)
    with StreamSink(tmp_path / "s") as sink:
        done = run_with("connect", SUPPORT / "spark_connect_job.py", {"socket": sink.path, "directory": str(tmp_path)})
    assert done["counts"] == [15, 0]
    assert len(sink.messages) == 15
    assert [text for text in done["shown"] if "15 messages delivered, " in text and "3 chunks" in text]
    assert [text for text in done["shown"] if "WARNING: timestamps of topic t are up to" in text]


@pytest.mark.soak
def test_a_zip_of_the_package_is_enough_for_executors(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bruce_mp.zip", "w") as archive:
        for file in (ROOT / "bruce_mp").rglob("*.py"):
            archive.write(file, file.relative_to(ROOT))
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    with StreamSink(tmp_path / "s") as sink:
        submit("4.1", tmp_path, "--py-files", str(tmp_path / "bruce_mp.zip"), str(job), sink.path)
    assert len(sink.messages) == 30


SUBMITTED: Final = """
import sys
from pyspark.sql import SparkSession
from bruce_mp.spark import register
spark = SparkSession.builder.getOrCreate()
register(spark)
frame = spark.range(0, 30, 1, 3).selectExpr("cast(id as string) as value")
frame.write.format("bruce").mode("append").option("topic", "t").save(sys.argv[1])
"""
