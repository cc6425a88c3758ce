"""The audit on real Spark: one topic for each planted fault, and the audit names each fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line
from bruce_mp.spark.audit.report import AuditVerdict
from bruce_mp.spark.audit.run import Audit, _remove_samples, compare, write_facts
from bruce_mp.spark.audit.samples import SAMPLE_COLUMNS
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

M1: Final = 1_700_000_040_000
M2: Final = M1 + 60_000
GOOD: Final = 12_000
"""More messages than Arrow puts into one batch."""
KAFKA: Final = (
    "topic string, partition int, offset long, kafka_ms long, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)


@dataclass
class Planted:
    """Messages with the columns of Spark's Kafka source, and the ledger of their senders."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[TaskResult] = field(default_factory=list)

    def put(
        self,
        topic: str,
        sequence: Iterable[int],
        *,
        ms: int = M1,
        attempt: int = 0,
        partition: int = 0,
    ) -> None:
        for number in sequence:
            stamp = {"key": "bruce.stamp", "value": f"{number:016} {ms:013} {topic}-query/3/0/{attempt}".encode()}
            headers = [{"key": "own", "value": b"x"}, stamp]
            self.rows.append(
                {
                    "topic": topic, "partition": partition, "offset": len(self.rows), "kafka_ms": ms + 12,
                    "timestampType": 1, "headers": headers,
                }
            )  # fmt: skip

    def put_plain(self, topic: str, count: int, ms: int = M1) -> None:
        row = {"topic": topic, "partition": 0, "offset": 0, "kafka_ms": ms, "timestampType": 0, "headers": None}
        self.rows += [row] * count

    def enter(
        self, topic: str, rows: dict[int, int], *, attempt: int = 0, acks: str = "delivered", **more: Any
    ) -> None:
        stamped = more.pop("stamped", True)
        counts = {(topic, minute): count for minute, count in rows.items()}
        self.ledger.append(
            TaskResult(TaskAttempt(f"{topic}-query", 3, 0, attempt), "host", counts, acks, stamped, **more)
        )

    def first_offset(self, topic: str) -> int:
        return next((row["offset"] for row in self.rows if row["topic"] == topic), 0)

    def frame(self, spark: SparkSession) -> DataFrame:
        rows = spark.createDataFrame(self.rows, KAFKA).coalesce(1)
        return rows.selectExpr("*", "timestamp_millis(kafka_ms) as timestamp")


@pytest.fixture(scope="module")
def planted() -> Planted:
    it = Planted()
    it.enter("good", {M1: GOOD, M2: 2})
    it.put("good", range(GOOD), partition=0)
    it.put("good", range(GOOD, GOOD + 2), ms=M2, partition=1)
    it.enter("lost", {M1: 10})
    it.put("lost", [n for n in range(10) if n not in {4, 5, 9}])
    it.enter("doubled", {M1: 10})
    it.put("doubled", [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9])
    it.put("doubled", [1], partition=1)
    it.enter("late", {M1: 10})
    it.put("late", [0, 1, 2, 4, 3, 5, 6, 7, 8, 9])
    it.enter("discarded", {M1: 10}, delivered=7, discarded={"LONG_MSG": 1, "NO_MEM": 2})
    it.put("discarded", range(7))
    it.enter("possible", {M1: 10}, delivered=6, discarded={"RATE_LIMIT": 1, "POSSIBLY_DELIVERED": 3})
    it.put("possible", range(8))
    it.enter("silent", {M1: 5, M2: 5}, acks="none")
    it.put("silent", range(4))
    it.put("silent", range(5, 8), ms=M2)
    it.enter("retried", {M2: 10}, attempt=1)
    it.put("retried", range(4), attempt=0)
    it.put("retried", [n for n in range(10) if n != 2], ms=M2, attempt=1)
    it.enter("rerun", {M2: 10})
    it.put("rerun", range(4))
    it.put("rerun", range(10), ms=M2)
    it.enter("plain", {M1: 6, M2: 4}, stamped=False)
    it.put_plain("plain", 5)
    it.put_plain("plain", 4, M2)
    it.put("strange", range(3))
    it.put_plain("strange", 2)
    it.enter("gone", {M1: 70_000}, delivered=70_000)
    return it


TOPICS: Final = (
    "good lost doubled late discarded possible silent retried rerun plain strange gone".split()  # and no others
)


@pytest.fixture(scope="module")
def audited(
    spark: SparkSession, planted: Planted, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AuditVerdict, Path]:
    directory = tmp_path_factory.mktemp("audit")
    half = len(planted.ledger) // 2
    for number, part in enumerate((planted.ledger[:half], planted.ledger[half:])):
        write_ledger(f"{directory}/ledger-{number}", part)
    lines = [
        DiscardLine(M2 + n, 5, event, "NO_MEM", b"silent", b"", b"v")
        for n, event in enumerate([LineEvent.DISCARD, LineEvent.DUPLICATE, LineEvent.DISCARD])
    ]
    (directory / "discards").write_bytes(b"".join(map(format_line, lines)))
    ledgers = [f"{directory}/ledger-0", f"{directory}/ledger-1"]
    plan = Audit("nowhere", TOPICS, ledgers, f"{directory}/out", [f"{directory}/discards"])
    earlier = Planted()
    earlier.put("good", range(5))
    write_facts(earlier.frame(spark), plan.facts_directory)
    write_facts(planted.frame(spark), plan.facts_directory)  # a second landing replaces the first
    return compare(spark, plan), directory / "out"


def balance_of(spark: SparkSession, output: Path, topic: str) -> dict[int, dict[str, Any]]:
    rows = spark.read.parquet(f"{output}/balance").where(f"topic = '{topic}'").collect()
    assert len({row["minute"] for row in rows}) == len(rows)
    return {
        row["minute"]: {k: v for k, v in row.asDict().items() if v and k not in {"topic", "minute"}} for row in rows
    }


LATENCY: Final = {"p50_ms": 12, "p99_ms": 12}


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("good", {M1: {"sent": GOOD, "delivered": GOOD, **LATENCY}, M2: {"sent": 2, "delivered": 2, **LATENCY}}),
        ("lost", {M1: {"sent": 10, "delivered": 7, "missing": 3, "problems": "lost", **LATENCY}}),
        ("doubled", {M1: {"sent": 10, "delivered": 10, "doubled": 2, "problems": "doubled", **LATENCY}}),
        ("late", {M1: {"sent": 10, "delivered": 10, "out_of_order": 1, "problems": "out of order", **LATENCY}}),
        (
            "discarded",
            {M1: {"sent": 10, "delivered": 7, "discarded": 3, "reasons": {"LONG_MSG": 1, "NO_MEM": 2}, **LATENCY}},
        ),
        (
            "possible",
            {
                M1: {
                    "sent": 10, "delivered": 8, "discarded": 2, "reasons": {"RATE_LIMIT": 1, "POSSIBLY_DELIVERED": 1},
                    **LATENCY,
                }
            },
        ),
        (
            "silent",
            {
                M1: {"sent": 5, "delivered": 4, "discarded": 1, "reasons": {"NO_MEM": 1}, **LATENCY},
                M2: {
                    "sent": 5, "delivered": 3, "discarded": 1, "reasons": {"NO_MEM": 1}, "missing": 1,
                    "problems": "lost", **LATENCY,
                },
            },
        ),
        (
            "retried",
            {M1: LATENCY, M2: {"sent": 10, "delivered": 10, "doubled": 3, "problems": "doubled", **LATENCY}},
        ),
        ("rerun", {M1: LATENCY, M2: {"sent": 10, "delivered": 10, "doubled": 4, "problems": "doubled", **LATENCY}}),
        ("plain", {M1: {"sent": 6, "delivered": 5, "missing": 1, "problems": "lost"}, M2: {"sent": 4, "delivered": 4}}),
        ("strange", {M1: {"unknown": 5, **LATENCY}}),
        ("gone", {M1: {"sent": 70_000, "missing": 70_000, "problems": "lost"}}),
    ],
)  # fmt: skip
def test_each_topic_has_its_verdict(
    spark: SparkSession, audited: tuple[AuditVerdict, Path], topic: str, expected: dict[int, dict[str, Any]]
) -> None:
    found = balance_of(spark, audited[1], topic)
    assert {minute: row for minute, row in found.items() if row.keys() - LATENCY.keys() or minute in expected} == {
        minute: row for minute, row in expected.items() if minute in found or row.keys() - LATENCY.keys()
    }


def test_totals_sum_all_topics(audited: tuple[AuditVerdict, Path]) -> None:
    verdict, _ = audited
    assert not verdict.is_good
    assert verdict.sent == verdict.delivered + verdict.discarded + verdict.missing
    expected = AuditVerdict(70_092 + GOOD, GOOD + 77, 7, 70_005 + 3, 9, 1, 5)
    assert (verdict.missing, verdict.doubled, verdict.out_of_order) == (70_005, 9, 1)
    assert (verdict.discarded, verdict.unknown) == (expected.discarded, expected.unknown)


def test_each_topic_with_problems_has_a_line(audited: tuple[AuditVerdict, Path]) -> None:
    lines = audited[0].lines
    assert set(lines) > {
        "lost: sent 10 = delivered 7 + discarded 0 + missing 3",
        "doubled: sent 10 = delivered 10 + discarded 0 + missing 0; doubled 2",
        "late: sent 10 = delivered 10 + discarded 0 + missing 0; out of order 1",
        "discarded: sent 10 = delivered 7 + discarded 3 + missing 0 (discarded: NO_MEM 2, LONG_MSG 1)",
        "strange: sent 0 = delivered 0 + discarded 0 + missing 0; unknown writers 5",
    }
    assert not [line for line in lines if line.startswith("good")]
    (line,) = (line for line in lines if "before Kafka had confirmed them" in line)
    assert line.startswith("5 missing messages are of tasks that ended before"), "of lost, silent and plain"
    assert "killed daemon), on host: a daemon there may still hold them, or they were lost with its slab" in line


def test_each_message_with_a_problem_is_named(spark: SparkSession, audited: tuple[AuditVerdict, Path]) -> None:
    rows = spark.read.parquet(f"{audited[1]}/problems").collect()
    named: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows:
        if row["problem"] != "unknown":
            named.setdefault((row["writer"].split("-")[0], row["problem"]), []).append((row["first"], row["last"]))
    assert {key: sorted(ranges) for key, ranges in named.items()} == {
        ("lost", "missing"): [(4, 5), (9, 9)],
        ("doubled", "doubled"): [(1, 1), (3, 3)],
        ("late", "out of order"): [(3, 3)],
        ("discarded", "discarded"): [(7, 9)],
        ("possible", "discarded"): [(8, 9)],
        ("silent", "missing or discarded"): [(4, 4), (8, 9)],
        ("retried", "doubled"): [(0, 1), (3, 3)],
        ("rerun", "doubled"): [(0, 3)],
        ("gone", "missing"): [(0, 69_999)],
    }


def test_each_problem_has_its_place_and_time(
    spark: SparkSession, planted: Planted, audited: tuple[AuditVerdict, Path]
) -> None:
    columns = ("problem", "topic", "partition", "first", "last", "from_offset", "to_offset", "from_ms", "to_ms")
    wanted = "topic in ('lost', 'doubled', 'late', 'strange', 'gone')"
    rows = spark.read.parquet(f"{audited[1]}/problems").where(wanted).collect()
    found = {tuple(row[name] for name in columns): row["messages"] for row in rows}
    begin = {topic: planted.first_offset(topic) for topic in TOPICS}
    doubled, late, strange = begin["doubled"], begin["late"], begin["strange"]
    assert found == {
        ("missing", "lost", None, 4, 5, None, None, M1, M1): 2,
        ("missing", "lost", None, 9, 9, None, None, M1, M1 + 59_999): 1,
        ("missing", "gone", None, 0, 69_999, None, None, M1, M1 + 59_999): 70_000,
        ("doubled", "doubled", 0, 3, 3, doubled + 4, doubled + 4, M1, M1): 1,
        ("doubled", "doubled", 1, 1, 1, doubled + 11, doubled + 11, M1, M1): 1,
        ("out of order", "late", 0, 3, 3, late + 4, late + 4, M1, M1): 1,
        ("unknown", "strange", 0, 0, 2, strange, strange + 2, M1, M1): 3,
        ("unknown", "strange", 0, None, None, 0, 0, M1, M1): 2,
    }


def test_unknown_messages_are_bad_if_asked(audited: tuple[AuditVerdict, Path]) -> None:
    counts = AuditVerdict(1, 1, 0, 0, 0, 0, 5)
    assert counts.is_good
    assert not replace(counts, unknown_is_bad=True).is_good
    assert replace(counts, unknown=0, unknown_is_bad=True).is_good


def test_the_report_page_is_complete_and_self_contained(audited: tuple[AuditVerdict, Path]) -> None:
    page = (audited[1] / "report.html").read_text()
    assert "The books do not balance." in page
    for text in ("gone", "70,000", "out of order", "LONG_MSG", "lost-query/3/0", "12 ms"):
        assert text in page
    for loading in ("http://", "https://", "<script", "<link", "src=", "url("):
        assert loading not in page


def test_problems_of_open_minutes_and_old_samples_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    open_minute, it = M2 + 60_000, Planted()
    it.enter("closed", {M1: 3})
    it.put("closed", [0, 2])
    it.enter("straddling", {M1: 2, open_minute: 2})
    it.put("straddling", range(2))
    it.put("strange", range(2))
    it.put("strange", range(2, 4), ms=open_minute)
    it.put("doubled", [0, 0], ms=open_minute)
    it.enter("doubled", {open_minute: 1})
    write_ledger(f"{tmp_path}/ledger", it.ledger)
    it.ledger.clear()
    it.enter("cut", {M2: 3, open_minute: 3})
    it.put("cut", [0], ms=M2)
    write_ledger(f"{tmp_path}/other", it.ledger)
    (ledger_file,) = (tmp_path / "other").glob("*.json")  # a ledger may also be given as a single file
    topics = ["closed", "straddling", "strange", "doubled", "cut"]
    plan = Audit("unused:1", topics, [f"{tmp_path}/ledger", str(ledger_file)], str(tmp_path))
    write_facts(it.frame(spark), plan.facts_directory)
    spark.createDataFrame([], ", ".join(f"{name} string" for name in SAMPLE_COLUMNS)).write.parquet(
        f"{tmp_path}/samples"
    )
    compare(spark, plan, f"minute < {open_minute}")
    rows = spark.read.parquet(f"{tmp_path}/problems").collect()
    found = {(row["topic"], row["problem"], row["first"], row["last"]) for row in rows}
    begins_closed = ("cut", "missing", 1, 5)  # a range that ends in an open minute
    assert found == {("closed", "missing", 1, 1), ("strange", "unknown", 0, 1), begins_closed}
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize("stamped", [True, False])
def test_messages_of_earlier_minutes_hide_no_loss(spark: SparkSession, tmp_path: Path, stamped: bool) -> None:
    """The facts and discard lines have all, as at the start of `follow`; the ledger file is newer than the limit."""
    it = Planted()
    it.enter("t", {M1: 6, M2: 4}, stamped=stamped)
    if stamped:
        it.put("t", range(6))
        it.put("t", range(6, 8), ms=M2)
    else:
        it.put_plain("t", 6)
        it.put_plain("t", 2, M2)
    write_ledger(f"{tmp_path}/ledger", it.ledger)
    (tmp_path / "discards").write_bytes(
        2 * format_line(DiscardLine(M1, M1, LineEvent.DISCARD, "NO_MEM", b"t", b"", b""))
    )
    plan = Audit("unused:1", ["t"], [f"{tmp_path}/ledger"], str(tmp_path), [f"{tmp_path}/discards"])
    write_facts(it.frame(spark), plan.facts_directory)
    verdict = compare(spark, plan, changed_after=datetime.fromtimestamp(M2 / 1000 + 1, UTC))
    assert (verdict.sent, verdict.missing, verdict.unknown) == (4, 2, 0)


def test_samples_of_another_program_stay(spark: SparkSession, tmp_path: Path) -> None:
    plan, samples = Audit("unused:1", ["t"], [], str(tmp_path)), tmp_path / "samples"
    _remove_samples(spark, plan)
    assert not samples.exists()
    for content in (b"", b"no table"):
        samples.mkdir(exist_ok=True)
        (samples / "own.parquet").write_bytes(content)
        _remove_samples(spark, plan)
        assert (samples / "own.parquet").exists()
    spark.sql("select 1 as daemon, 2 as value").write.mode("overwrite").parquet(str(samples))
    _remove_samples(spark, plan)
    assert spark.read.parquet(str(samples)).columns == ["daemon", "value"]


@pytest.mark.parametrize(("columns", "stays"), [(SAMPLE_COLUMNS, False), (["problem", "own"], True)])
def test_only_our_samples_are_removed_from_a_catalog(
    spark: SparkSession, tmp_path: Path, columns: list[str], stays: bool
) -> None:
    spark.sql("drop table if exists default.samples")
    fields = ", ".join(f"{name} string" for name in columns)
    spark.sql(f"create table default.samples({fields}) using parquet location '{tmp_path}/samples'")
    _remove_samples(spark, Audit("unused:1", ["t"], [], str(tmp_path), namespace="default"))
    assert spark.catalog.tableExists("default.samples") is stays
    spark.sql("drop table if exists default.samples")
