"""A task against a fake daemon: its frames, its use of the answers, and its errors."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import Barrier, BarrierAnswer, BarrierStatus, Level, decode_barrier, encode_answer
from bruce_mp.protocol.client.fence import EndReason, encode_ended
from bruce_mp.protocol.client.inquiry import AttemptOutcome, Inquiry, InquiryAnswer, is_inquiry
from bruce_mp.spark import channel
from bruce_mp.spark.errors import RowError, TaskError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.options import Acks, OnDiscard, SinkOptions
from bruce_mp.spark.task import DeadLetters, run_task
from support.daemon import Daemon
from support.stream_daemon import answering_once
from support.stream_sink import StreamSink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.stream_daemon import Connection

ATTEMPT: Final = TaskAttempt("query", 7, 2, 1)


def options(sink: StreamSink, **changed: Any) -> SinkOptions:
    return SinkOptions(**{"socket": sink.path, "topic": "t", "stamp": False, "timeout_ms": 5000, **changed})


def batches(*values: bytes) -> Iterable[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def test_rows_arrive_in_order_and_the_barrier_comes_last(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(30_000)]
    with StreamSink(tmp_path / "s") as sink:
        sent = run_task(options(sink), ATTEMPT, batches(*values))
    assert sink.values == values
    ((barrier,),) = [connection.barriers for connection in sink.connections]
    assert (barrier.level, barrier.limit_ms) == (Level.DELIVERED, 5000)
    assert (sent.message_count, sent.delivered, sent.attempt) == (30_000, 30_000, ATTEMPT)
    assert {topic for topic, _ in sent.rows} == {"t"}


def test_no_barrier_is_sent_without_acks(tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        sent = run_task(options(sink, acks=Acks.NONE), ATTEMPT, batches(b"v"))
    assert sent.delivered is None
    assert [connection.barriers for connection in sink.connections] == [[]]


def test_a_fence_encloses_all_messages_of_the_attempt(tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink, fence=True), ATTEMPT, batches(b"a", b"b"))
    (connection,) = sink.connections
    assert connection.marks == [("begin", 0), ("end", 2)]
    assert connection.name == b"query/7/2/1"


@pytest.mark.parametrize("fence", [True, False])
def test_rows_with_a_timestamp_column_keep_timestamps(tmp_path: Path, *, fence: bool) -> None:
    times = pa.array([0, 12_345_000], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": times})
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink, fence=fence), ATTEMPT, [batch, batch])
    (connection,) = sink.connections
    assert connection.keeps_timestamps
    assert connection.marks == [("begin", 0), ("end", 4 if fence else 0)]
    assert [message.timestamp_ms for message in sink.parsed] == [0, 12_345] * 2


@pytest.mark.parametrize("fence", [True, False])
def test_rows_without_timestamps_do_not_set_the_keep_option(tmp_path: Path, *, fence: bool) -> None:
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink, fence=fence), ATTEMPT, batches(b"a"))
    (connection,) = sink.connections
    assert not connection.keeps_timestamps
    assert connection.marks == ([("begin", 0), ("end", 1)] if fence else [])


def test_a_task_without_rows_has_an_empty_attempt(tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink, fence=True), ATTEMPT, [])
    (connection,) = sink.connections
    assert connection.marks == [("begin", 0), ("end", 0)]


def discarding(barrier: Barrier, received: int) -> BarrierAnswer:
    reasons: dict[DiscardReason | int, int] = {DiscardReason.BAD_TOPIC: 2}
    return BarrierAnswer(barrier.token, BarrierStatus.DONE, received, received - 2, 2, reasons)


def test_discards_fail_the_task_with_their_reasons(tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s", discarding) as sink:
        with pytest.raises(TaskError, match=r"of 3 .* delivered 1 and discarded 2 \(BAD_TOPIC 2\).*onDiscard=report"):
            run_task(options(sink), ATTEMPT, batches(b"a", b"b", b"c"))
        sent = run_task(options(sink, on_discard=OnDiscard.REPORT), ATTEMPT, batches(b"a", b"b", b"c"))
    assert (sent.delivered, sent.discarded) == (1, {"BAD_TOPIC": 2})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (BarrierStatus.TIMED_OUT, "not all messages were delivered in time (option 'timeoutMs')"),
        (BarrierStatus.SHUTTING_DOWN, "the daemon is being shut down"),
        (BarrierStatus.UNSUPPORTED_VERSION, "upgrade it"),
    ],
)
def test_an_unsuccessful_answer_fails_the_task(tmp_path: Path, status: BarrierStatus, words: str) -> None:
    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(barrier.token, status, received, 0, 0)

    with StreamSink(tmp_path / "s", answer) as sink, pytest.raises(TaskError, match=re.escape(words)):
        run_task(options(sink), ATTEMPT, batches(b"a"))


def test_inconsistent_counts_fail_the_task(tmp_path: Path) -> None:
    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(barrier.token, BarrierStatus.DONE, received - 1, received - 1, 0)

    with StreamSink(tmp_path / "s", answer) as sink, pytest.raises(TaskError, match="counts of daemon and task differ"):
        run_task(options(sink), ATTEMPT, batches(b"a"))


def test_a_missing_daemon_is_reported_with_the_remedy(tmp_path: Path) -> None:
    gone = SinkOptions(str(tmp_path / "s"), "t", connect_timeout_ms=200)
    with pytest.raises(TaskError, match=r"\[BRUCE_TASK\] .*/s on .*: no daemon .*unix_stream"):
        run_task(gone, ATTEMPT, batches(b"v"))


def test_a_task_waits_for_a_restarting_daemon(tmp_path: Path) -> None:
    done: list[TaskResult] = []
    wanted = SinkOptions(str(tmp_path / "s"), "t", stamp=False, connect_timeout_ms=60_000)
    task = threading.Thread(target=lambda: done.append(run_task(wanted, ATTEMPT, batches(b"v"))))
    task.start()
    with StreamSink(tmp_path / "s") as sink:
        task.join(60)
    assert sink.values == [b"v"]
    assert [sent.delivered for sent in done] == [1]


def test_the_path_expands_environment_variables_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRUCE_STREAM", str(tmp_path / "s"))
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink, socket="$BRUCE_STREAM"), ATTEMPT, batches(b"v"))
    assert sink.values == [b"v"]


def test_a_daemon_that_disconnects_is_reported(tmp_path: Path) -> None:
    def die(_barrier: Barrier, _received: int) -> BarrierAnswer:
        raise ConnectionResetError

    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        with StreamSink(tmp_path / "s", die) as sink, pytest.raises(TaskError, match="the connection ended before"):
            run_task(options(sink), ATTEMPT, batches(b"v"))
    finally:
        threading.excepthook = hook


def test_a_task_waits_while_delivery_progresses(tmp_path: Path) -> None:
    delivered = iter((1, 2, 3))

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        done = next(delivered)
        status = BarrierStatus.DONE if done == received else BarrierStatus.TIMED_OUT
        return BarrierAnswer(barrier.token, status, received, done, 0)

    with StreamSink(tmp_path / "s", answer) as sink:
        sent = run_task(options(sink), ATTEMPT, batches(b"a", b"b", b"c"))
    assert sent.delivered == 3
    assert [len(connection.barriers) for connection in sink.connections] == [3]


@pytest.mark.parametrize("rows", [1, 100_000])
def test_the_daemons_end_reason_is_the_error(tmp_path: Path, rows: int) -> None:
    """While the task waits for an answer, and while it sends more than the socket holds."""
    end = encode_ended(EndReason.TOO_LARGE, "The daemon ended the attempt: it is too large.")
    chosen = SinkOptions(socket=str(tmp_path / "s"), topic="t", stamp=False, timeout_ms=5000, fence=True)
    with (
        answering_once(tmp_path / "s", end),
        pytest.raises(TaskError, match="The daemon ended the attempt: it is too large"),
    ):
        run_task(chosen, ATTEMPT, batches(*[bytes(100)] * rows))


def test_an_answer_of_another_protocol_fails_the_task(tmp_path: Path) -> None:
    chosen = SinkOptions(socket=str(tmp_path / "s"), topic="t", timeout_ms=5000)
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with answering_once(tmp_path / "s", answer), pytest.raises(TaskError, match=str(tmp_path / "s")):
        run_task(chosen, ATTEMPT, batches(b"v"))


def test_an_invalid_row_fails_the_task_and_is_named(tmp_path: Path) -> None:
    batch = pa.record_batch({"value": [b"v", b"w" * 81], "key": ["one", "two"], "topic": ["t", None]})
    keyed = rf"\[BRUCE_ROW\] Row 4 of partition 2 \(key \"two\", value begins \"{'w' * 80}\"\) .*null.*deadLetterPath"
    unkeyed = r"Row 1 of partition 2 \(no key, no value\) cannot be a message: its topic is null"
    with StreamSink(tmp_path / "s") as sink:
        with pytest.raises(RowError, match=keyed):
            run_task(options(sink, topic=None), ATTEMPT, [batch.slice(0, 1), batch.slice(0, 1), batch])
        nothing = pa.record_batch({name: pa.array([None], pa.string()) for name in ("topic", "value")})
        with pytest.raises(RowError, match=unkeyed):
            run_task(options(sink, topic=None), ATTEMPT, [nothing])


@pytest.mark.parametrize("named", [None, "own"])
def test_a_dead_letter_has_the_topic_of_its_row(tmp_path: Path, named: str | None) -> None:
    batch = pa.record_batch({"value": [b"v" * 200]} | ({} if named is None else {"topic": [named]}))
    unnamed = pa.record_batch({"value": [b"v" * 200], "topic": pa.array([None], pa.string())})
    with StreamSink(tmp_path / "s") as sink:
        chosen = options(sink, max_record_bytes=100, dead_letter_path=str(tmp_path / "dead"))
        run_task(chosen, ATTEMPT, [batch] if named is None else [batch, unnamed])
    letters = pq.read_table(tmp_path / "dead").to_pylist()
    assert [letter["topic"] for letter in letters] == (["t"] if named is None else ["own", "t"])
    assert {*letters[0]} == {"value", "topic", "reason", "writer"}


def test_invalid_rows_are_written_to_the_dead_letter_path(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    batch = pa.record_batch({"value": [b"v", b"w" * 200, b"x", b"y"], "topic": ["t", "t", None, "x" * 250]})
    with StreamSink(tmp_path / "s") as sink:
        changed = {"topic": None, "dead_letter_path": str(dead), "max_record_bytes": 200, "stamp": False}
        sent = run_task(options(sink, **changed), ATTEMPT, [batch])
    assert sink.values == [b"v"]
    assert (sent.message_count, sent.dead_letters) == (1, 3)
    rows = pq.read_table(dead / "query-7-2-1.parquet").to_pylist()
    assert [row["value"] for row in rows] == [b"w" * 200, b"x", b"y"]
    assert [row["reason"] for row in rows] == [
        "it has 229 bytes, and option maxRecordBytes allows 200",
        "its topic is null, and there is no option 'topic'",
        f"its topic is '{'x' * 80}' with 250 bytes, and Kafka allows 1 to 249 letters, digits, '.', '_' and '-'",
    ]
    assert {row["writer"] for row in rows} == {"query/7/2/1"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_attempt_that_fails_before_its_end_has_no_dead_letters(tmp_path: Path, *, is_killed: bool) -> None:
    dead = tmp_path / "dead"
    batch = pa.record_batch({"value": [b"v", b"w"], "topic": pa.array(["t", None])})

    def failing() -> Iterable[pa.RecordBatch]:
        yield batch
        raise RuntimeError

    with StreamSink(tmp_path / "s") as sink:
        chosen = options(sink, topic=None, dead_letter_path=str(dead))
        if is_killed:
            DeadLetters(str(dead), ATTEMPT, None).write(batch, ["", ""])
        else:
            with pytest.raises(RuntimeError):
                run_task(chosen, ATTEMPT, failing())
        assert len([*dead.iterdir()]) == is_killed
        run_task(chosen, replace(ATTEMPT, attempt=2), [batch])
    (letter,) = pq.read_table(dead).to_pylist()
    assert letter["writer"] == "query/7/2/2"


def test_oversized_headers_make_a_row_invalid(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "k", "value": b"x" * size}] for size in (65_528, 65_529)], kind)
    batch = pa.record_batch({"value": [b"v", b"w"], "headers": headers})
    with StreamSink(tmp_path / "s") as sink:
        run_task(options(sink), ATTEMPT, [batch.slice(0, 1)])
        with pytest.raises(RowError, match="its headers have 65536 bytes with the stamp, and 65535 are allowed"):
            run_task(options(sink), ATTEMPT, [batch])


def test_the_ledger_counts_by_topic_and_minute(tmp_path: Path) -> None:
    minute = 60_000_000
    times = pa.array([0, 59_999_999, minute, minute], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": [b"v"] * 4, "topic": ["a", "a", "a", "b"], "timestamp": times})
    with StreamSink(tmp_path / "s") as sink:
        sent = run_task(options(sink), ATTEMPT, [batch])
    assert dict(sent.rows) == {("a", 0): 2, ("a", 60_000): 1, ("b", 60_000): 1}


def test_a_ledger_is_written_whole_and_once(tmp_path: Path) -> None:
    sent = TaskResult(ATTEMPT, "host", {("a", 0): 2, ("b", 60_000): 1}, "delivered", delivered=3)
    for _ in range(2):
        write_ledger(str(tmp_path / "ledger"), [sent, sent], name="commit")
    write_ledger(str(tmp_path / "ledger"), [])
    (file,) = (tmp_path / "ledger").iterdir()
    assert file.name == "commit.json"
    assert len(file.read_text().splitlines()) == 4


BAD: Final[list[tuple[dict[str, Any], str]]] = [
    ({"topic": "bad topic!"}, "its topic is 'bad topic!' with 10 bytes, and Kafka allows"),
    ({"topic": ".."}, "its topic is '..' with 2 bytes"),
    ({"topic": ""}, "its topic is '' with 0 bytes"),
    ({"partition_key": 2**32}, "its partition_key is 4294967296, and -2147483648 to 4294967295 are allowed"),
    ({"value": b"x" * 968}, "it has 1001 bytes, and option maxRecordBytes allows 1000"),
    ({"value": b"x" * 901}, "its key, value and headers have 901 bytes, and batching.message_max_bytes"),
    ({"_corrupt_record": '{"a": '}, "its input is malformed: '{\"a\": '"),
    ({"headers": [{"key": "k" * 32_768, "value": b""}]}, "a key of its headers has more than 32767 bytes"),
]


@pytest.mark.parametrize(("changed", "reason"), BAD, ids=[next(iter(changed)) for changed, _ in BAD])
def test_each_kind_of_bad_row_has_its_reason(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    payload = 900 if changed.get("value") == b"x" * 901 else 100_000

    def limits(inquiry: Inquiry) -> InquiryAnswer:
        return InquiryAnswer(inquiry.token, AttemptOutcome.NONE, 0, 2_000_000, payload)

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    good: dict[str, Any] = {"value": b"v", "topic": "t", "_corrupt_record": None, "headers": [], "partition_key": None}
    kinds = {"value": pa.binary(), "topic": pa.string(), "_corrupt_record": pa.string(), "headers": headers}
    kinds["partition_key"] = pa.int64()
    rows = [good, {**good, **changed}, good]
    batch = pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    limit = None if "headers" in changed else 1000
    with StreamSink(tmp_path / "s", inquired=limits) as sink:
        chosen = options(sink, topic=None, dead_letter_path=str(tmp_path / "dead"), max_record_bytes=limit)
        sent = run_task(chosen, ATTEMPT, [batch])
    assert (sink.values, sent.dead_letters) == ([b"v", b"v"], 1)
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert letter["reason"].startswith(reason)


def test_the_limit_of_an_older_daemon_is_the_default(tmp_path: Path) -> None:
    class OldDaemon(StreamSink):
        def _handle_frame(self, connection: Connection, frame: bytes) -> None:
            if is_inquiry(frame):
                refusal = decode_barrier(frame)
                assert isinstance(refusal, BarrierAnswer)
                connection.client.sendall(encode_answer(refusal))
            else:
                super()._handle_frame(connection, frame)

    with OldDaemon(tmp_path / "s") as sink:
        assert run_task(options(sink), ATTEMPT, batches(b"v" * 999_974)).delivered == 1
        with pytest.raises(RowError, match=r"message_max_bytes of the daemon allows 999974"):
            run_task(options(sink), ATTEMPT, batches(b"v" * 999_975))


@pytest.mark.process
def test_the_limits_of_a_daemon_are_those_of_the_sink(tmp_path: Path) -> None:
    """The largest good row is delivered, and the daemon discards none, because one more byte is a bad row."""
    settings = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": f'"{tmp_path}/stream"',
        "input.max_stream_size": 3_000_000,
        "batching.message_max_bytes": 500_000,
    }
    (tmp_path / "daemon").mkdir()
    with DevBroker(topics={"t": 1}) as broker, Daemon(tmp_path / "daemon", broker.bootstrap, settings) as daemon:
        chosen = SinkOptions(f"{tmp_path}/stream", "t", stamp=True, dead_letter_path=str(tmp_path / "dead"))
        overhead = len("bruce.stamp") + 6 + 31 + len(ATTEMPT.author)
        for size in (500_000 - 26 - overhead, 500_000 - 25 - overhead):
            run_task(chosen, ATTEMPT, batches(b"k" * size))
        books = daemon.wait_settled(1)
    assert (books.received, books.delivered) == (1, 1)
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert "batching.message_max_bytes of the daemon allows 499974" in letter["reason"]


def test_an_unknown_topic_is_named_with_the_remedy(tmp_path: Path) -> None:
    with StreamSink(tmp_path / "s", discarding) as sink:
        with pytest.raises(TaskError, match=r"\(BAD_TOPIC 2\)\. The brokers have no topic t: create it, or correct"):
            run_task(options(sink), ATTEMPT, batches(b"a", b"b", b"c"))
        two = pa.record_batch({"value": pa.array([b"a", b"b"]), "topic": pa.array(["one", "two"])})
        words = r"The brokers lack at least one of the topics one, two; the daemon's log names those that are missing\."
        with pytest.raises(TaskError, match=words):
            run_task(options(sink), ATTEMPT, [two])


@pytest.mark.parametrize(
    ("reason", "topics", "remedy"),
    [
        (DiscardReason.RATE_LIMIT, ["t", "t"], "Topic t is over its limit in rate_limit.configs of the daemon: raise"),
        (DiscardReason.RATE_LIMIT, ["t", "u"], "At least one of the topics t, u is over its limit in rate_limit.conf"),
        (
            DiscardReason.LONG_MSG,
            ["t", "t"],
            "A message is larger than batching.message_max_bytes of the daemon allows.",
        ),
        (77, ["t", "t"], "and discarded 1 (77 1). The daemon's log and its status page /discards have the cause. Each"),
    ],
)
def test_each_reason_of_discards_has_its_remedy(
    tmp_path: Path, reason: DiscardReason | int, topics: list[str], remedy: str
) -> None:
    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(barrier.token, BarrierStatus.DONE, received, received - 1, 1, {reason: 1})

    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "topic": pa.array(topics)})
    with StreamSink(tmp_path / "s", answer) as sink, pytest.raises(TaskError, match=re.escape(remedy)) as caught:
        run_task(options(sink), ATTEMPT, [batch])
    assert "(spark.task.maxFailures, 4 by default) delivers the other messages again" in str(caught.value)


def test_a_daemon_that_does_not_answer_is_an_error_with_the_time_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_ANSWER_GRACE_S", 0.0)
    with socket.socket(socket.AF_UNIX) as kept_open:
        kept_open.bind(str(tmp_path / "s"))
        kept_open.listen()
        words = rf"did not answer for 1 s .raise 'timeoutMs' .*bruce status on {socket.gethostname()}.*'bruce hold'"
        with (
            channel.Channel(str(tmp_path / "s"), timeout_ms=1000, connect_timeout_ms=0) as opened,
            pytest.raises(TaskError, match=words),
        ):
            opened.inquire()
