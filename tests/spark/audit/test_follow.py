"""The audit as a service: its end, its removal of old facts, and its use in any thread."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from confluent_kafka import Producer

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import ExitCode
from bruce_mp.spark import cli
from bruce_mp.spark.audit.follow import (
    Follow,
    _closed_minutes,
    _closed_until,
    _EarlierLedgers,
    _end,
    _remove_old_facts,
    _start_query,
    follow,
)
from bruce_mp.spark.audit.kafka_source import stream_topics
from bruce_mp.spark.audit.report import COUNTS, AuditVerdict, Summary
from bruce_mp.spark.audit.run import Audit, AuditInputError
from bruce_mp.spark.cli import main
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.pipelines.progress import Progress
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TOPIC: Final = "followed"
NO_SPARK: Final = cast("Any", None)
PAST_MS: Final = 300_000
"""Age of the messages, so that their minute is over."""


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={TOPIC: 1}) as running:
        yield running


def put(broker: DevBroker, numbers: Iterable[int], directory: Path, promised: int) -> Audit:
    """Write stamped messages and the ledger of their sender; return the audit of both."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    sent = time.time_ns() // 1_000_000 - PAST_MS
    for number in numbers:
        stamp = b"%016d %013d query/-1/0/0" % (number, sent)
        producer.produce(TOPIC, b"v", partition=0, timestamp=sent, headers=[("bruce.stamp", stamp)])
    assert producer.flush(60) == 0
    counts = {(TOPIC, sent - sent % 60_000): promised}
    write_ledger(
        f"{directory}/ledger", [TaskResult(TaskAttempt("query", -1, 0, 0), "host", counts, "delivered", stamped=True)]
    )
    return Audit(broker.bootstrap, [TOPIC], [f"{directory}/ledger"], f"{directory}/audit")


def plan_of(audit: Audit, *, stop_when_bad: bool = False) -> Follow:
    return Follow(audit, every_s=1, lateness_s=1, stop_when_bad=stop_when_bad)


def quiet() -> Progress:
    return Progress("test", io.StringIO())


def test_a_stream_begins_where_the_options_say(spark: SparkSession) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "startingOffsets": "latest"}
    assert stream_topics(spark, options, ["t"]).isStreaming


def test_follow_runs_in_any_thread_and_stops_at_the_first_bad_report_when_requested(
    spark: SparkSession, broker: DevBroker, tmp_path: Path
) -> None:
    plan = plan_of(put(broker, [0, 1, 3], tmp_path, 4), stop_when_bad=True)
    verdicts: list[AuditVerdict] = []

    def run() -> None:
        verdicts.extend(follow(spark, plan, progress=quiet()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    (verdict,) = verdicts
    assert (verdict.missing, verdict.is_good) == (1, False)
    assert spark.streams.active == []


def test_sigterm_ends_the_command_after_a_last_report(
    spark: SparkSession, broker: DevBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    audit = put(broker, range(10), tmp_path, 10)
    places = [f"--ledger={audit.ledgers[0]}", f"--output={audit.output}", f"--bootstrap={broker.bootstrap}"]
    report = tmp_path / "audit" / "report.html"

    def terminate_after_a_report() -> None:
        wait_until(report.exists, "a first report", 120)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thread = threading.Thread(target=terminate_after_a_report)
    thread.start()
    try:
        assert main(["audit", f"--topic={TOPIC}", *places, "--follow", "--every=1", "--lateness=1"]) == ExitCode.OK
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capfd.readouterr().err.count("delivered 10 + discarded 0 + missing 0") > 1
    assert spark.streams.active == []


def test_the_last_report_covers_what_was_committed_after_the_last_read(
    spark: SparkSession, broker: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.spark.audit.follow._has_read_all", lambda query: query.lastProgress is not None)
    (tmp_path / "ledger").mkdir()
    audit = Audit(broker.bootstrap, [TOPIC], [f"{tmp_path}/ledger"], f"{tmp_path}/audit")
    stop, verdicts = threading.Event(), []
    for verdict in follow(spark, Follow(audit, every_s=600, lateness_s=1), stop, quiet()):
        verdicts.append(verdict)
        if len(verdicts) == 1:
            put(broker, range(5), tmp_path, 5)
            stop.set()
    assert [(verdict.sent, verdict.missing) for verdict in verdicts] == [(0, 0), (5, 0)]


def test_the_last_report_ignores_what_is_committed_after_its_read_began(
    spark: SparkSession, broker: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = put(broker, range(5), tmp_path, 5)
    monkeypatch.setattr("bruce_mp.spark.audit.follow._now_ms", lambda: put(broker, [], tmp_path, 7) and 1)
    (file,) = (tmp_path / "ledger").iterdir()
    audit = replace(audit, ledgers=[f"{tmp_path}/l*"])
    assert _end(spark, plan_of(audit)) == (1, replace(audit, ledgers=[str(file)]))
    assert len(list((tmp_path / "ledger").iterdir())) == 2


@pytest.mark.parametrize("argument", ["--window=59", "--window=-3600", "--lateness=-1", "--every=1.5"])
def test_a_wrong_number_of_seconds_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["audit", "--bootstrap=b", "--topic=t", "--ledger=l", "--output=o", "--follow", argument])
    assert exited.value.code == ExitCode.USAGE
    assert "is not a whole number from" in capsys.readouterr().err


def test_facts_of_other_runs_double_no_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts, checkpoint = tmp_path / "facts", tmp_path / "checkpoint"
    start = SimpleNamespace(trigger=lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr("bruce_mp.spark.audit.follow._facts_writer", lambda *_: start)
    plan = plan_of(Audit("unused:1", [TOPIC], [], str(tmp_path)))
    (facts / "00000007").mkdir(parents=True)
    for name in ("part-0.parquet", "00000007/part-0.parquet"):
        (facts / name).touch()
    _start_query(cast("SparkSession", None), plan)
    assert list(facts.iterdir()) == [], "without a checkpoint, all messages are read again"
    checkpoint.mkdir()
    (checkpoint / "metadata").touch()
    (facts / "00000000").mkdir()
    _start_query(cast("SparkSession", None), plan)
    assert (facts / "00000000").exists()
    (facts / "part-0.parquet").touch()
    with pytest.raises(AuditInputError, match=f"remove {checkpoint} to read"):
        _start_query(cast("SparkSession", None), plan)


def test_facts_outside_the_window_are_removed(tmp_path: Path) -> None:
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"), window_s=100)
    now = time.time()
    for name, ages in {"00000001": (900, 300), "00000002": (900, 100), "00000003": (0,)}.items():
        (tmp_path / "facts" / name).mkdir(parents=True)
        for number, age in enumerate(ages):
            file = tmp_path / "facts" / name / f"part-{number}"
            file.touch()
            os.utime(file, (now - age, now - age))
    _remove_old_facts(plan)
    assert sorted(entry.name for entry in (tmp_path / "facts").iterdir()) == ["00000002", "00000003"]


class InterruptedQuery:
    """A query that is reading when it is stopped; as Spark's, a stopped one reports no available data."""

    def __init__(self) -> None:
        self.lastProgress: dict[str, Any] = {"timestamp": "2026-01-01T00:00:00Z", "eventTime": {}}
        self.status = {"isDataAvailable": True, "isTriggerActive": True}

    def stop(self) -> None:
        self.status = {"isDataAvailable": False, "isTriggerActive": False}


def test_the_last_report_leaves_out_what_was_not_read(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"))
    query: Any = InterruptedQuery()
    ledgers = _EarlierLedgers(NO_SPARK, plan)
    assert list(_closed_minutes(query, ledgers, stop, quiet(), lambda: pytest.fail("reads again"))) == []


class EndlessQuery(InterruptedQuery):
    """A query that reads its first batch until it is stopped."""

    recentProgress: Final[list[SimpleNamespace]] = []  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        super().__init__()
        self.polled, self.stopped = threading.Event(), threading.Event()

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802 - Spark's name
        self.polled.set()
        return self.stopped.wait(timeout_s)

    def stop(self) -> None:
        super().stop()
        self.stopped.set()


def test_a_stop_event_ends_follow_in_any_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    query, stop, session = EndlessQuery(), threading.Event(), cast("Any", None)
    monkeypatch.setattr("bruce_mp.spark.audit.follow.missing_topics", lambda *_: [])
    monkeypatch.setattr("bruce_mp.spark.audit.follow._start_query", lambda *_: query)
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"))
    thread = threading.Thread(target=lambda: list(follow(session, plan, stop, quiet())))
    thread.start()
    try:
        assert query.polled.wait(10)
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        assert query.stopped.is_set()
    finally:
        query.stop()
        thread.join()


def test_the_first_report_covers_the_minutes_since_the_last_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command was down for longer than the window."""
    module, hour_ms, minute_ms = "bruce_mp.spark.audit.follow", 3_600_000, 60_000
    now_ms = time.time_ns() // 1_000_000 // minute_ms * minute_ms
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"), lateness_s=60, window_s=600)
    reports: list[tuple[str, float]] = []
    (tmp_path / "facts").mkdir()

    def compare(_: object, __: object, condition: str, changed_after: datetime) -> None:
        reports.append((condition, changed_after.timestamp()))

    for name in ("missing_topics", "check_paths"):
        monkeypatch.setattr(f"{module}.{name}", lambda *_: None)
    monkeypatch.setattr(f"{module}._start_query", lambda *_: InterruptedQuery())
    monkeypatch.setattr(f"{module}.compare", compare)
    for ends in ([now_ms - 2 * hour_ms], [now_ms - hour_ms, now_ms]):
        monkeypatch.setattr(f"{module}._closed_minutes", lambda *_, ends=ends: [(end, plan.audit) for end in ends])
        list(follow(cast("Any", None), plan, progress=quiet()))
    first_times = [
        now_ms - 2 * hour_ms - 10 * minute_ms, now_ms - 2 * hour_ms - minute_ms, now_ms - hour_ms - minute_ms,
    ]  # fmt: skip
    assert [condition.split()[2] for condition, _ in reports] == [str(first) for first in first_times]
    for first_ms, (_, changed_after_s) in zip(first_times[1:], reports[1:], strict=True):
        assert changed_after_s == first_ms / 1000 - plan.window_s


class SteadyQuery(InterruptedQuery):
    """A query with one message in each batch, of which Spark keeps the last 100 reports."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        super().stop()
        self._last, self._batches = 0, batches

    def awaitTermination(self, _: float) -> bool:  # noqa: N802 - Spark's name
        self._last += 1
        time.sleep(0.06)
        return self._last == self._batches

    @property
    def recentProgress(self) -> list[SimpleNamespace]:  # noqa: N802 - Spark's name
        return [SimpleNamespace(numInputRows=1, batchId=self._last - age) for age in range(100)]


def reading_query(watermark: datetime, read_age_s: float = 0) -> Any:
    """Return a query that began its last read, which had messages, `read_age_s` ago."""
    began = datetime.now(UTC) - timedelta(seconds=read_age_s)
    progress = {"timestamp": began.isoformat(), "eventTime": {"watermark": watermark.isoformat()}}
    return SimpleNamespace(lastProgress=progress, status={"isDataAvailable": True, "isTriggerActive": True})


@pytest.mark.parametrize("read_age_s", [0, 600])
def test_a_timestamp_in_the_future_closes_no_minute_after_the_last_read(tmp_path: Path, read_age_s: int) -> None:
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"), lateness_s=30)
    query = reading_query(datetime.now(UTC) + timedelta(days=40), read_age_s)
    limit_ms = (time.time() - read_age_s - plan.lateness_s) * 1000
    assert limit_ms - 60_000 <= _closed_until(query, plan) <= limit_ms + 1000


def test_the_watermark_closes_minutes_before_the_last_read(tmp_path: Path) -> None:
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"), lateness_s=30)
    query = reading_query(datetime(2026, 1, 1, 12, 30, 59, tzinfo=UTC))
    assert _closed_until(query, plan) == datetime(2026, 1, 1, 12, 30, tzinfo=UTC).timestamp() * 1000


def test_a_steady_stream_is_not_idle(tmp_path: Path) -> None:
    plan = Follow(Audit("nowhere", [TOPIC], [], f"{tmp_path}"), until_idle_s=1)
    query: Any = SteadyQuery(batches=30)
    list(_closed_minutes(query, _EarlierLedgers(NO_SPARK, plan), threading.Event(), quiet(), lambda: None))
    assert query._last == 30


class ReadingQuery(InterruptedQuery):
    """A query that ends a read at each of two polls; the commits of `commit` follow the reads."""

    recentProgress: Final[list[SimpleNamespace]] = []  # noqa: N815 - Spark's name

    def __init__(self, commit: Callable[[], object]) -> None:
        super().__init__()
        self._commit, self._polls = commit, 0

    def awaitTermination(self, _: float) -> bool:  # noqa: N802 - Spark's name
        time.sleep(0.002)
        now, closed = datetime.now(UTC), datetime.now(UTC) - timedelta(minutes=3 - self._polls)
        self.lastProgress = {"timestamp": now.isoformat(), "eventTime": {"watermark": closed.isoformat()}}
        self._commit()
        self._polls += 1
        return self._polls > 2


def test_a_report_leaves_out_commits_after_the_last_read_began(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    plan = Follow(Audit("nowhere", [TOPIC], [f"{tmp_path}/ledger"], f"{tmp_path}/audit"), lateness_s=1)

    def commit() -> None:
        write_ledger(
            plan.audit.ledgers[0], [TaskResult(TaskAttempt("query", -1, 0, 0), "host", {(TOPIC, 0): 1}, "delivered")]
        )

    query: Any = ReadingQuery(commit)
    ends = list(_closed_minutes(query, _EarlierLedgers(NO_SPARK, plan), threading.Event(), quiet(), lambda: None))
    assert [len(audit.ledgers) for _, audit in ends] == [0, 1, 1]
    assert len(list((tmp_path / "ledger").iterdir())) == 3


def test_a_list_of_ledger_files_is_replaced_before_merged_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr("bruce_mp.spark.audit.follow._now_ms", lambda: now_ms)
    (tmp_path / "ledger").mkdir()
    ledgers = _EarlierLedgers(NO_SPARK, Follow(Audit("nowhere", [TOPIC], [f"{tmp_path}/ledger"], f"{tmp_path}/audit")))
    write_ledger(
        f"{tmp_path}/ledger", [TaskResult(TaskAttempt("query", -1, 0, 0), "host", {(TOPIC, 0): 1}, "delivered")]
    )
    counts = []
    for now_ms in (20 * 60_000, 20 * 60_000 + 1, 40 * 60_000 + 2):  # noqa: B007 - `_now_ms` returns it
        ledgers.follow_reads(0)
        counts.append(len(ledgers.audit.ledgers))
    assert counts == [0, 0, 1]


def test_messages_without_a_ledger_are_pointed_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"topic": TOPIC, **dict.fromkeys(COUNTS, 0), "unknown": 5}
    lines = Summary([unknown], {}).describe((), ())
    strange = AuditVerdict(0, 0, 0, 0, 0, 0, 5, topic_lines=lines)
    quiet_night = AuditVerdict(0, 0, 0, 0, 0, 0, 0, topic_lines=Summary([], {}).describe((), ()))
    monkeypatch.setattr("bruce_mp.spark.audit.follow.follow", lambda *_: [strange, quiet_night])
    monkeypatch.setattr(cli, "_handle_stop_signals", threading.Event)
    session: Any = None
    assert cli._run_follow(session, Follow(Audit("nowhere", [TOPIC], [], "."))) == ExitCode.OK
    hint, topic = capsys.readouterr().out.splitlines()
    assert hint.startswith("the ledgers have no messages of these topics and minutes: check that --ledger ")
    assert topic == f"{TOPIC}: sent 0 = delivered 0 + discarded 0 + missing 0; unknown writers 5"
    assert Summary([{**unknown, "sent": 1}], {}).describe((), ())[0].startswith(f"{TOPIC}: ")
