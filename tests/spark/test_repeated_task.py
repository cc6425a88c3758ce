"""A task that ran before: what it finds in the ledger and asks the daemon decides if it sends its rows again."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import Barrier, BarrierAnswer, BarrierStatus
from bruce_mp.protocol.client.inquiry import AttemptOutcome, Inquiry, InquiryAnswer
from bruce_mp.spark.encode import MessageEncoder
from bruce_mp.spark.errors import TaskError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult
from bruce_mp.spark.options import Acks, OnDiscard, OnDoubt, SinkOptions
from bruce_mp.spark.task import run_task
from bruce_mp.spark.task_ledger import RowsDigest, TaskEntry, TaskLedger
from support.daemon import Daemon as RealDaemon
from support.processes import wait_until
from support.stream_sink import StreamSink, all_delivered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST: Final = TaskAttempt("query", 7, 2, 0)
AGAIN: Final = TaskAttempt("query", 7, 2, 1)
VALUES: Final = [b"a", b"b", b"c"]


class Daemon:
    """A fake daemon that answers barriers, unless it dies, and inquiries about the attempt as the test says."""

    def __init__(self, path: Path) -> None:
        self.dies = False
        self.outcome = AttemptOutcome.NONE
        self.since_ms = 0
        self.reasons: dict[DiscardReason | int, int] = {}
        self.inquired: list[bytes] = []
        self.sink = StreamSink(path, self._answer, self._inquired)

    def _answer(self, barrier: Barrier, received: int) -> BarrierAnswer:
        if self.dies:
            return BarrierAnswer(barrier.token, BarrierStatus.SHUTTING_DOWN, received, 0, 0)
        return all_delivered(barrier, received)

    def _inquired(self, inquiry: Inquiry) -> InquiryAnswer:
        self.inquired.append(inquiry.name)
        lost = sum(self.reasons.values())
        found = (self.outcome, self.since_ms, 2_097_156, 999_974, 3, 3 - lost, self.reasons)
        return InquiryAnswer(inquiry.token, *(found if inquiry.name else (AttemptOutcome.NONE, *found[1:])))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "s")
    with daemon.sink:
        yield daemon


@pytest.fixture
def options(tmp_path: Path) -> SinkOptions:
    return SinkOptions(str(tmp_path / "s"), "t", timeout_ms=5000, ledger=str(tmp_path / "ledger"))


def run(options: SinkOptions, attempt: TaskAttempt = AGAIN, values: list[bytes] = VALUES) -> TaskResult:
    batches = [pa.record_batch({"value": pa.array([value], pa.binary())}) for value in values]
    return run_task(options, attempt, batches)


def interrupted(daemon: Daemon, options: SinkOptions) -> None:
    """Run a task that dies between its end frame and the daemon's answer."""
    daemon.dies = True
    with pytest.raises(TaskError, match="shut down"):
        run(options, FIRST)
    daemon.dies = False


def sent(daemon: Daemon) -> int:
    return len(daemon.sink.messages)


def test_a_task_with_an_outcome_in_the_ledger_sends_nothing(daemon: Daemon, options: SinkOptions) -> None:
    first = run(options, FIRST)
    assert run(options, AGAIN) == first
    assert (sent(daemon), first.delivered, first.attempt) == (3, 3, FIRST)
    (connection,) = daemon.sink.connections
    assert (connection.name, connection.is_unique) == (b"query/7/2", True)
    other = replace(AGAIN, batch=8)
    assert TaskLedger(options.ledger or "").find(other) is None


@pytest.mark.parametrize("content", [b"", b'{"result": {"att', bytes(100)], ids=["empty", "cut", "zeros"])
def test_a_damaged_entry_fails_the_task_until_the_file_is_deleted(
    tmp_path: Path, daemon: Daemon, options: SinkOptions, content: bytes
) -> None:
    run(options, FIRST)
    path = tmp_path / "ledger/_tasks/query/7/2.json"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=rf"messages of task query/7/2: .*file {path} is damaged .*Delete this file"):
        run(options, AGAIN)
    assert sent(daemon) == 3
    path.unlink()
    run(options, AGAIN)
    assert sent(daemon) == 6


def test_an_entry_is_on_disk_under_its_name_when_it_is_stored(
    tmp_path: Path, daemon: Daemon, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "ledger/_tasks/query/7/2.json", list[str](), os.fsync

    def record_sync(descriptor: int) -> None:
        synced.append(re.sub(r"\.[0-9a-f]{32}\.", ".", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    run(options)
    assert sent(daemon) == 3
    assert synced == [f"{path}.part", str(path.parent)] * 2  # the intent and the outcome


def test_of_two_simultaneous_attempts_only_one_completes(
    tmp_path: Path, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_searched, find = threading.Barrier(2, timeout=10), TaskLedger.find

    def find_together(ledger: TaskLedger, attempt: TaskAttempt) -> TaskEntry | None:
        entry = find(ledger, attempt)
        both_searched.wait()
        return entry

    monkeypatch.setattr(TaskLedger, "find", find_together)
    with StreamSink(tmp_path / "a") as first, StreamSink(tmp_path / "b") as second, ThreadPoolExecutor() as threads:
        runs = {FIRST: replace(options, socket=first.path), AGAIN: replace(options, socket=second.path)}
        futures = [threads.submit(run, chosen, attempt) for attempt, chosen in runs.items()]
        errors = [str(future.exception()) for future in futures if future.exception()]
    assert errors == ["[BRUCE_TASK] Another attempt of task query/7/2 is ending. This one does not complete."]
    marks = [mark for sink in (first, second) for connection in sink.connections for mark, _ in connection.marks]
    assert sorted(marks) == ["begin", "begin", "end"]
    assert [file.name for file in (tmp_path / "ledger/_tasks/query/7").iterdir()] == ["2.json"]


def test_a_first_entry_is_stored_on_a_file_system_without_hard_links(
    daemon: Daemon, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert run(options, AGAIN) == run(options, AGAIN)
    assert sent(daemon) == 3


def test_an_intent_precedes_the_end_frame(tmp_path: Path, options: SinkOptions) -> None:
    path = tmp_path / "ledger/_tasks/query/7/2.json"
    seen: list[bool] = []

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        seen.append(json.loads(path.read_text())["is_done"])
        return all_delivered(barrier, received)

    with StreamSink(tmp_path / "s", answer) as sink:
        run(options)
    assert seen == [False]
    assert [mark for connection in sink.connections for mark, _ in connection.marks] == ["begin", "end"]
    assert json.loads(path.read_text())["is_done"]


@pytest.mark.usefixtures("daemon")
def test_dead_letters_are_readable_before_the_intent_is_stored(
    tmp_path: Path, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that finds the attempt complete writes no dead letters, even if the first one was killed at its end."""
    dead, read_counts, store = str(tmp_path / "dead"), list[int](), TaskLedger.store

    def read_and_store(ledger: TaskLedger, entry: TaskEntry, *, replaces: bool) -> None:
        read_counts.append(pq.read_table(dead).num_rows)
        store(ledger, entry, replaces=replaces)

    monkeypatch.setattr(TaskLedger, "store", read_and_store)
    batch = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary()), "topic": pa.array(["t", "bad topic!"])})
    result = run_task(replace(options, dead_letter_path=dead), AGAIN, [batch])
    assert (result.dead_letters, read_counts) == (1, [1, 1])


@pytest.mark.parametrize(
    ("outcome", "messages", "delivered"),
    [(AttemptOutcome.NONE, 6, 3), (AttemptOutcome.SETTLED, 3, 3), (AttemptOutcome.UNCOUNTED, 3, None)],
)
def test_the_daemon_decides_about_an_intent(
    daemon: Daemon, options: SinkOptions, outcome: AttemptOutcome, messages: int, delivered: int | None
) -> None:
    interrupted(daemon, options)
    daemon.outcome = outcome
    for _ in range(2):  # the second run finds the outcome in the ledger
        assert run(options).delivered == delivered
    assert sent(daemon) == messages
    assert b"query/7/2" in daemon.inquired


def lost(daemon: Daemon) -> None:
    daemon.outcome = AttemptOutcome.LOST


def forgetful(daemon: Daemon) -> None:
    daemon.since_ms = 2**62


def elsewhere(_: Daemon) -> None:
    """The entry names another host."""


@pytest.mark.parametrize("cause", [lost, forgetful, elsewhere])
def test_the_option_decides_about_an_attempt_in_doubt(
    daemon: Daemon, options: SinkOptions, cause: Callable[[Daemon], None]
) -> None:
    ledger = TaskLedger(options.ledger or "")
    interrupted(daemon, options)
    cause(daemon)
    entry = ledger.find(AGAIN)
    assert entry is not None
    if cause is elsewhere:
        ledger.store(replace(entry, result=replace(entry.result, host="gone")))
    with pytest.raises(
        TaskError, match=r"unknown whether Kafka has the messages of task query/7/2: .*, but .*onDoubt=send"
    ):
        run(options)
    assert sent(daemon) == 3
    assert run(replace(options, on_doubt=OnDoubt.SKIP)).delivered is None
    assert sent(daemon) == 3
    ledger.store(replace(entry, result=replace(entry.result, host="gone")))
    assert run(replace(options, on_doubt=OnDoubt.SEND)).delivered == 3
    assert sent(daemon) == 6


def test_other_rows_than_the_delivered_ones_fail_the_task(daemon: Daemon, options: SinkOptions) -> None:
    run(options, FIRST)
    for values in ([b"a", b"b"], [b"a", b"b", b"x"], [b"ab", b"", b"c"]):
        with pytest.raises(TaskError, match="Task query/7/2 has other rows"):
            run(options, values=values)
    batch = pa.record_batch({"value": pa.array([b"_", *VALUES, b"_"], pa.binary())}).slice(1, 3)
    assert run_task(options, AGAIN, [batch]).delivered == 3, "other batches of the same rows"
    assert sent(daemon) == 3


def row_of(value: bytes = b"v", topic: str | None = None, header: str | None = None) -> pa.RecordBatch:
    """Return a batch of one row, without the columns that are None."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    headers = [[] if header == "" else [{"key": "h", "value": header}]]
    columns = {"value": pa.array([value], pa.binary())}
    columns |= {} if topic is None else {"topic": pa.array([topic])}
    return pa.record_batch(columns | ({} if header is None else {"headers": pa.array(headers, kind)}))


@pytest.mark.parametrize(
    ("rows", "option", "text"),
    [
        ([row_of(), row_of()], "edge", "was sent to topic t by an earlier run; this one names topic edge. Nothing was"),
        ([row_of(topic="t"), row_of(topic="u")], "t", "was sent to topic t by an earlier run; this one names topic u."),
        ([row_of(header="A"), row_of(header="B")], "t", "has other headers than its delivered attempt on"),
        ([row_of(header="A"), row_of()], "t", "has other headers than its delivered attempt on"),
        ([row_of(b"w"), row_of()], "t", "has other rows than its delivered attempt on"),
    ],
    ids=["topic option", "topic column", "headers", "no headers", "rows"],
)
def test_a_run_with_another_topic_or_other_headers_is_refused(
    daemon: Daemon, options: SinkOptions, rows: list[pa.RecordBatch], option: str, text: str
) -> None:
    run_options = replace(options, run_id="r1")
    first, again = rows
    run_task(run_options, FIRST, [first])
    with pytest.raises(TaskError, match=f"Task query/7/2 {text}.*use another runId") as caught:
        run_task(replace(run_options, topic=option), AGAIN, [again])
    keeps_topic = "Send to topic t until this micro-batch is committed.*" if "was sent to topic" in text else ""
    with pytest.raises(TaskError, match=f"{keeps_topic}use another checkpoint"):
        run_task(replace(options, topic=option), AGAIN, [again])
    assert run_task(run_options, AGAIN, [first]).delivered == 1
    assert "checkpoint" not in str(caught.value)
    assert sent(daemon) == 1


@pytest.mark.parametrize("header", [None, "A"])
def test_an_outcome_of_an_older_release_matches_the_same_rows(
    daemon: Daemon, options: SinkOptions, header: str | None
) -> None:
    """Its digest does not contain the headers."""
    ledger, row = TaskLedger(options.ledger or ""), row_of(header=header)
    run_task(options, FIRST, [row])
    entry = ledger.find(AGAIN)
    assert entry is not None
    ledger.store(replace(entry, digest="1-1089d8aa0f3188bd"))
    assert run_task(options, AGAIN, [row]).delivered == 1
    with pytest.raises(TaskError, match="was sent to topic t by an earlier run; this one names topic edge"):
        run_task(replace(options, topic="edge"), AGAIN, [row])
    assert sent(daemon) == 1


@pytest.mark.usefixtures("daemon")
def test_headers_without_content_have_the_digest_of_no_headers(options: SinkOptions) -> None:
    run_task(options, FIRST, [row_of(header="")])
    assert run_task(options, AGAIN, [row_of()]).delivered == 1


EARLIER_DISCARDS: Final = (
    r"an earlier attempt of task query/7/2 ended at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC with 1 of 3 messages discarded "
    r"\(LONG_MSG 1; topic t\)\. .*A message is larger than batching\.message_max_bytes .* this attempt sent nothing\. "
    r"Set onDiscard=report, then send .* bruce-spark replay .*"
    r"discard_log\.enable.*; without this file, use another checkpoint"
)


def test_the_first_attempt_with_discards_names_the_way_to_replay_them(tmp_path: Path, options: SinkOptions) -> None:
    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(barrier.token, BarrierStatus.DONE, received, 2, 1, {DiscardReason.LONG_MSG: 1})

    with StreamSink(tmp_path / "s", answer) as sink:
        with pytest.raises(
            TaskError, match=r"of 3 .*discarded 1 \(LONG_MSG 1\).*A repeated task sends nothing again: set"
        ):
            run(options)
        with pytest.raises(TaskError, match=EARLIER_DISCARDS):
            run(options)
        with pytest.raises(TaskError, match="use another runId, which sends all rows again"):
            run(replace(options, run_id="r1"))
        job = replace(FIRST, batch=-1)
        with pytest.raises(TaskError, match="discarded 1"):
            run(options, job)
        with pytest.raises(TaskError, match="without this file, run the job again, which sends all rows again"):
            run(options, job)
    assert len(sink.messages) == 6


def test_discards_of_a_finished_attempt_fail_each_repetition(daemon: Daemon, options: SinkOptions) -> None:
    interrupted(daemon, options)
    daemon.outcome, daemon.reasons = AttemptOutcome.SETTLED, {DiscardReason.LONG_MSG: 1}
    for _ in range(2):
        with pytest.raises(TaskError, match=EARLIER_DISCARDS):
            run(options)
    result = run(replace(options, on_discard=OnDiscard.REPORT))
    assert (result.delivered, result.discarded, sent(daemon)) == (2, {"LONG_MSG": 1}, 3)


@pytest.mark.parametrize("changed", [{"ledger": None}, {"fence": False}, {"acks": Acks.NONE}])
def test_without_ledger_fence_or_answer_a_task_is_sent_again(
    daemon: Daemon, tmp_path: Path, options: SinkOptions, changed: dict[str, Any]
) -> None:
    for attempt in (FIRST, AGAIN):
        run(replace(options, **changed), attempt)
    wait_until(lambda: sent(daemon) == 6, "all messages")  # without acks, the task does not wait for the daemon
    assert not any(connection.is_unique for connection in daemon.sink.connections)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.usefixtures("daemon")
def test_entries_of_earlier_batches_are_removed(options: SinkOptions) -> None:
    ledger = TaskLedger(options.ledger or "")
    for batch in (5, 6, 7):
        run(options, replace(FIRST, batch=batch))
    ledger.remove("query", 7)
    assert [ledger.find(replace(FIRST, batch=batch)) is not None for batch in (5, 6, 7)] == [False, False, True]
    ledger.remove("query")
    ledger.remove("never")
    assert ledger.find(replace(FIRST, batch=7)) is None


def digest_of(*batches: list[bytes | None]) -> str:
    digest, encoder = RowsDigest(), MessageEncoder(b"t", None)
    for values in batches:
        digest.update(encoder.convert(pa.record_batch({"value": pa.array(values, pa.binary())})))
    return str(digest)


def test_a_digest_tells_rows_apart_but_not_their_batches() -> None:
    all_values: list[list[bytes | None]] = [[b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], [b"abc", None]]
    digests = {digest_of(values) for values in all_values}
    assert len(digests) == len(all_values)
    assert digests == {digest_of(*([value] for value in values)) for values in all_values}


def test_a_digest_does_not_depend_on_the_order_of_rows() -> None:
    """After a shuffle, Spark repeats a task's rows in another order."""
    assert digest_of([b"a", b"bc", None, b""]) == digest_of([b"", b"bc"], [None, b"a"])
    assert digest_of([b"ab", b"cd"]) != digest_of([b"ad", b"cb"])


@pytest.mark.process
def test_a_daemon_takes_the_rows_of_a_lost_slab_again(tmp_path: Path) -> None:
    """The daemon has lost its slab, as in a reboot, and remembers the name of the attempt."""
    settings = {"input.unix_stream.enable": "true", "input.unix_stream.path": f'"{tmp_path}/s"'}
    (tmp_path / "daemon").mkdir()
    chosen = SinkOptions(f"{tmp_path}/s", "t", timeout_ms=20_000, ledger=str(tmp_path / "ledger"))
    with DevBroker(topics={"t": 1}) as broker, RealDaemon(tmp_path / "daemon", broker.bootstrap, settings) as daemon:
        run(chosen, replace(FIRST, batch=6))  # the daemon learns the topic
        broker.broker_down(1)
        with pytest.raises(TaskError):
            run(replace(chosen, timeout_ms=500), FIRST)
        daemon.kill_all()
        daemon.slab_path.unlink()
        broker.broker_up(1)
        daemon.start()
        with pytest.raises(TaskError, match="the slab of the daemon is gone"):
            run(chosen)
        assert run(replace(chosen, on_doubt=OnDoubt.SEND)).delivered == 3
        assert sum(len(partition) for partition in broker.fetch("t")) == 6
