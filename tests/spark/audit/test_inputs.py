"""The audit's inputs: topics that the brokers do not have, and wrong paths."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from confluent_kafka import Producer

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import ExitCode
from bruce_mp.spark.audit import run
from bruce_mp.spark.audit.inputs import read_ledger
from bruce_mp.spark.cli import main
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.ledger_files import MERGE_WIDTHS, LedgerFileError, merge_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

HERE: Final = "here"
GONE: Final = "gone"
LARGE: Final = 10_000
"""Bytes of a large message."""
NO_OTHERS: Final = "doubled 0, out of order 0, from unknown writers 0"
UNCONFIRMED: Final = (
    "missing messages are of tasks that ended before Kafka had confirmed them"
    " (acks=received or none, or a killed daemon), on host: a daemon there may still hold them,"
    " or they were lost with its slab, as in /dev/shm at a reboot"
)


@dataclass
class Place:
    """A broker with the topic `here`, and a directory with a ledger; `run` audits."""

    broker: DevBroker
    directory: Path
    minute: int = field(default_factory=lambda: time.time_ns() // 60_000_000_000 * 60_000)

    def send(self, topic: str, rows: int, arrived: int, query: str = "query") -> None:
        """Enter messages of a topic into the ledger; the first `arrived` are in Kafka."""
        writer = f"{topic}-{query}/-1/0"
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in range(arrived):
            stamp = b"%016d %013d %s/0" % (number, self.minute, writer.encode())
            producer.produce(topic, b"v", partition=0, headers=[("bruce.stamp", stamp)])
        assert producer.flush(60) == 0
        attempt = TaskAttempt(f"{topic}-{query}", -1, 0, 0)
        result = TaskResult(attempt, "host", {(topic, self.minute): rows}, "delivered", stamped=True, delivered=rows)
        write_ledger(f"{self.directory}/ledger", [result])

    def run(self, *arguments: str, ledger: str = "ledger") -> int:
        places = [f"--bootstrap={self.broker.bootstrap}", f"--output={self.directory}/audit"]
        return main(["audit", f"--ledger={self.directory}/{ledger}", *places, *arguments])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with DevBroker(topics={HERE: 1}) as broker:
        yield Place(broker, tmp_path)


@pytest.mark.usefixtures("spark")  # the command takes the running session
def test_a_topic_that_the_brokers_lack_counts_as_empty(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.send(HERE, 10, 10)
    place.send(GONE, 15, 0)
    assert place.run(f"--topic={HERE}", f"--topic={GONE}") == ExitCode.PROBLEMS_FOUND
    assert capfd.readouterr().out.splitlines() == [
        f"sent 25 = delivered 10 + discarded 0 + missing 15; {NO_OTHERS}",
        f"{GONE}: the brokers have no such topic; sent 15 = delivered 0 + discarded 0 + missing 15",
    ]
    assert place.run(f"--topic={HERE}", f"--topic={GONE}", "--topic=tpyo") == ExitCode.SETUP
    assert "--topic tpyo: neither the brokers nor the ledgers have this topic" in capfd.readouterr().err
    assert place.run(f"--topic={HERE}", f"--topic={GONE}", "--follow") == ExitCode.SETUP
    assert f"--topic {GONE}: the brokers have no such topic" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["startingOffsets", "startingTimestamp", "endingoffsetsbytimestamp"])
def test_progress_has_no_total_if_an_option_limits_the_messages(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(run, "count_offsets", lambda *_: 1000)
    plan = run.Audit("broker:1", [HERE], ["ledger"], "output")
    assert "%" in run._describe_reading(spark, plan, [HERE])()
    assert "%" not in run._describe_reading(spark, replace(plan, kafka={option: "1"}), [HERE])()


@pytest.mark.usefixtures("spark")
def test_a_wrong_path_names_its_option(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    topic = f"--topic={HERE}"
    assert place.run(topic) == ExitCode.SETUP
    assert f"bruce-spark: --ledger {place.directory}/ledger: there is no such directory." in capfd.readouterr().err
    place.send(HERE, 10, 10)
    pattern = f"{place.directory}/discard.log*"
    assert place.run(topic, f"--discards={pattern}") == ExitCode.SETUP
    assert f"bruce-spark: --discards {pattern}: no file matches." in capfd.readouterr().err
    assert not (place.directory / "audit" / "facts").exists(), "no topic is read before"
    (place.directory / "discard.log.1").touch()
    assert place.run(topic, f"--discards={pattern}") == ExitCode.OK


@pytest.mark.usefixtures("spark")
def test_a_glob_of_ledgers_leaves_merged_files_out(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """The brokers have none of the audited topics."""
    for number, ledger in enumerate(("ledger 1", "ledger-2%20")):
        query = str(UUID(int=number))
        for batch in (0, 1, MERGE_WIDTHS[0]):
            rows = dict.fromkeys([(HERE, place.minute), (GONE, place.minute)], 10)
            result = TaskResult(TaskAttempt(query, batch, 0, 0), "host", rows, "sent", stamped=True)
            write_ledger(f"{place.directory}/{ledger}", [result], name=f"{query}-{batch}")
        assert merge_ledger(f"{place.directory}/{ledger}").merged == 2
    assert place.run(f"--topic={GONE}", ledger="ledger[ -]*") == ExitCode.PROBLEMS_FOUND
    assert capfd.readouterr().out.splitlines() == [
        f"sent 60 = delivered 0 + discarded 0 + missing 60; {NO_OTHERS}",
        f"{GONE}: the brokers have no such topic; sent 60 = delivered 0 + discarded 0 + missing 60",
        f"60 {UNCONFIRMED}",
        f"the ledgers also have 60 messages of topics that are not audited: {HERE} 60",
    ]


@pytest.mark.usefixtures("spark")
def test_a_glob_of_ledger_files_leaves_unfinished_files_out(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.send(HERE, 10, 10)
    (finished,) = (place.directory / "ledger").iterdir()
    for name in (f"{finished.name}.{UUID(int=1).hex}.part", f"unfinished.json.{UUID(int=2).hex}.part"):
        (place.directory / "ledger" / name).write_bytes(finished.read_bytes())
    assert place.run(f"--topic={HERE}", ledger="ledger/*") == ExitCode.OK
    assert capfd.readouterr().out.startswith("sent 10 = delivered 10 ")


def test_a_damaged_ledger_file_is_named(spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """Nine messages are lost; without their lines in the ledger, the audit would not miss them."""
    place.send(HERE, 10, 10)
    rows = {(HERE, place.minute): 5, (HERE, place.minute + 60_000): 4}
    result = TaskResult(TaskAttempt("lost-query", -1, 0, 0), "host", rows, "delivered", stamped=True, delivered=9)
    write_ledger(f"{place.directory}/ledger", [result], name="cut 1%20")
    damaged = place.directory / "ledger" / "cut 1%20.json"
    content = damaged.read_bytes()
    for kept, fault in {
        content[:100]: "has a cut line",
        content[:-5]: "has a cut line",
        bytes(len(content)): "has a cut line",
        content.splitlines(keepends=True)[1]: "lacks lines of a task attempt",
    }.items():
        damaged.write_bytes(kept)
        with pytest.raises(LedgerFileError, match=f"{damaged} {fault}, "):
            read_ledger(spark, [f"{place.directory}/ledger"], ["other"])
    assert place.run(f"--topic={HERE}") == ExitCode.SETUP
    error = capfd.readouterr().err
    assert f"bruce-spark: The ledger file {damaged} lacks lines" in error
    assert "Restore it from a copy, or move it out of the ledger" in error
    damaged.write_bytes(content)
    ledger = read_ledger(spark, [f"{place.directory}/ledger"], [HERE])
    assert ledger.count() == 3
    ledger.unpersist()


@pytest.mark.usefixtures("spark")
def test_what_a_job_commits_during_the_audit_is_not_missing(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_facts = run._read_facts

    def read_facts_before_a_commit(spark: SparkSession, plan: run.Audit, topics: Sequence[str]) -> None:
        read_facts(spark, plan, topics)
        place.send(HERE, 5, 5, query="later")

    place.send(HERE, 10, 10)
    monkeypatch.setattr(run, "_read_facts", read_facts_before_a_commit)
    assert place.run(f"--topic={HERE}") == ExitCode.OK
    assert capfd.readouterr().out.startswith("sent 10 = delivered 10 + discarded 0 + missing 0;")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Place]:
    """Yield a place with a broker that keeps only the newest messages."""
    with DevBroker(topics={HERE: 1, "emptied": 1}, max_bytes=16 * LARGE) as broker:
        yield Place(broker, tmp_path)


def send_each(place: Place, topic: str, sent: dict[int, int], arrived: int) -> None:
    """Enter large messages of each minute into the ledger; the first `arrived` of a minute are batches in Kafka."""
    producer = Producer({"bootstrap.servers": place.broker.bootstrap})
    for number, (minute, rows) in enumerate(sent.items()):
        for sequence in range(arrived):
            stamp = b"%016d %013d %s-%d/-1/0/0" % (sequence, minute, topic.encode(), number)
            producer.produce(topic, b"v" * LARGE, partition=0, headers=[("bruce.stamp", stamp)])
            assert producer.flush(60) == 0
        result = TaskResult(
            TaskAttempt(f"{topic}-{number}", -1, 0, 0), "host", {(topic, minute): rows}, "delivered", stamped=True,
            delivered=rows,
        )  # fmt: skip
        write_ledger(f"{place.directory}/ledger", [result])


@pytest.mark.usefixtures("spark")
def test_messages_that_kafka_may_have_deleted_are_told_from_a_loss(
    small: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    """The two newest messages of topic `here` are lost, as their minute shows; its oldest ones are deleted."""
    send_each(small, "emptied", {small.minute: 3}, arrived=3)
    send_each(small, HERE, {small.minute - 120_000: 10, small.minute: 12}, arrived=10)
    topics = f"--topic={HERE}", "--topic=emptied"
    assert small.run(*topics) == ExitCode.PROBLEMS_FOUND
    lines = capfd.readouterr().out.splitlines()
    (missing,) = (int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{HERE}: sent 22 ="))
    deleted = missing - 2
    assert 0 < deleted < 10
    assert lines[-1] == (
        f"up to {deleted + 3} of the missing messages may have been deleted by Kafka's retention before the audit "
        f"could read them: {HERE} {deleted}, emptied 3. They are not newer than the oldest message of a partition that "
        "begins above offset 0. Audit within the topic's retention.ms, or with --follow"
    )
    assert "deleted by Kafka&#x27;s retention" in (small.directory / "audit" / "report.html").read_text()
    assert small.run(*topics, "--kafka=startingOffsets=earliest") == ExitCode.PROBLEMS_FOUND
    assert "retention" not in capfd.readouterr().out, "an option may hide messages that are in Kafka"


@pytest.mark.usefixtures("spark")
def test_an_audit_without_the_brokers_offsets_names_the_doubt(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(HERE, 10, 9)
    assert place.run(f"--topic={HERE}") == ExitCode.PROBLEMS_FOUND
    assert "retention" not in capfd.readouterr().out, "the partition begins at offset 0"
    monkeypatch.setattr(run, "offsets_of", lambda *_: None)
    assert place.run(f"--topic={HERE}") == ExitCode.PROBLEMS_FOUND
    assert "the audit could not ask the brokers for the first offsets" in capfd.readouterr().out
