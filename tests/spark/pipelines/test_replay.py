"""Replay on real Spark: the daemon's lines, filters, each message at most once, and chunks in doubt."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrameWriter

from bruce_mp.errors import ExitCode
from bruce_mp.protocol.client.barrier import Barrier, BarrierAnswer, BarrierStatus
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line
from bruce_mp.protocol.client.replay_rules import DoubtfulPolicy, LineSelection, ReplayCounts
from bruce_mp.spark.cli import main
from bruce_mp.spark.pipelines.discards import read_complete_lines, read_discard_lines
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.pipelines.replay import DoubtfulError, replay
from support.stream_sink import StreamSink, all_delivered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN: Final = {"stamp": "false", "connectTimeoutMs": "100"}


def line(number: int, **changed: Any) -> bytes:
    given = {
        "now_ms": 5000, "timestamp_ms": 1000 + number, "event": LineEvent.DISCARD, "info": "NO_MEM", "topic": b"a",
        "key": b"", "value": b"v%d" % number, **changed,
    }  # fmt: skip
    return format_line(DiscardLine(**given))


def run(spark: SparkSession, sink: StreamSink, *files: Path, **options: Any) -> ReplayCounts:
    target = {**PLAIN, "bruce.socket": sink.path}
    state = options.pop("state", str(files[0].parent / "state"))
    chosen = {"progress": Progress("replay", io.StringIO()), **options}
    return replay(spark, [*map(str, files)], state, target, **chosen)


@pytest.mark.usefixtures("spark")
def test_a_state_directory_that_cannot_be_created_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(line(1))
    words = ["replay", f"{tmp_path}/file", f"--state={tmp_path}/file/state", "--socket=/unused"]
    assert main(words) == ExitCode.SETUP
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith("bruce-spark: ")
    assert f"{tmp_path}/file/state" in printed


def test_replay_restores_every_field_in_order(spark: SparkSession, tmp_path: Path) -> None:
    lines = [line(number, topic=b"t%d" % (number % 2)) for number in range(300)]
    lines.append(line(300, topic=b"k", key=b"\xff", value=b"", partition_key=2**32 - 1))
    lines.append(line(301, topic=b"k", partition_key=5, headers=((b"a", b"1"), (b"", None))))
    lines.append(line(302, topic=b"k", headers=((b"a", b""),)))
    (tmp_path / "d").write_bytes(b"".join(lines))
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(sent=303)
    found = sink.parsed
    for topic in (0, 1):
        mine = [m for m in found if m.topic == b"t%d" % topic]
        assert [(m.value, m.timestamp_ms, m.partition_key) for m in mine] == [
            (b"v%d" % n, 1000 + n, None) for n in range(topic, 300, 2)
        ]
    keyed = {(m.key, m.value, m.partition_key and m.partition_key % 2**32) for m in found if m.topic == b"k"}
    assert keyed == {(b"\xff", b"", 2**32 - 1), (b"", b"v301", 5), (b"", b"v302", None)}
    headers = {m.value: m.headers for m in found if m.headers}
    assert headers == {b"v301": ((b"a", b"1"), (b"", None)), b"v302": ((b"a", b""),)}


def test_replay_sends_null_and_empty_as_the_lines_say(spark: SparkSession, tmp_path: Path) -> None:
    choices = [(b"k", 0), (b"k", 8), (b"k", 16), (b"", 4 | 8), (b"", 16)]
    lines = [line(number, key=key, value=b"", empty=empty) for number, (key, empty) in enumerate(choices)]
    (tmp_path / "d").write_bytes(b"".join(lines))
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(sent=len(lines))
    found = sorted(sink.parsed, key=lambda message: message.timestamp_ms)
    assert [(message.key, int(message.empty)) for message in found] == [(b"k", 8), *choices[1:]]


def test_filters_select_lines_and_invalid_lines_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        line(0), line(1, topic=b"b"), line(2, info="LONG_MSG"), line(3, timestamp_ms=9), line(4, timestamp_ms=99),
        line(5, event=LineEvent.DUPLICATE, info="NONE"), line(6, info="MALFORMED"), line(7, info="VERSION(3)"),
        line(8, info="SLAB_DELIVERED"), line(9, info="POSSIBLY_DELIVERED"),
        line(10, info="SLAB_SENT"), b"not a line\n",
    ]  # fmt: skip
    (tmp_path / "d").write_bytes(b"".join(lines))
    wanted = LineSelection(["a"], ["NO_MEM"], 10, 2000)
    with StreamSink(tmp_path / "s") as sink:
        dry = run(spark, sink, tmp_path / "d", selection=wanted, dry_run=True)
        assert sink.connections == []
        assert run(spark, sink, tmp_path / "d", selection=wanted) == dry == ReplayCounts(2, 0, 6, 4)
        assert sorted(sink.values) == [b"v0", b"v4"]
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(3, 2, 0, 4, 3), (
            "what is or may be in Kafka is not sent unasked"
        )


def test_an_empty_file_has_no_messages(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d").touch()
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, tmp_path / "d") == ReplayCounts()


def test_no_message_is_replayed_twice_after_a_rename(spark: SparkSession, tmp_path: Path) -> None:
    file, renamed = tmp_path / "d", tmp_path / "d.1"
    file.write_bytes(line(0) * 2 + line(1))
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, file).sent == 3
        file.rename(renamed)
        renamed.write_bytes(renamed.read_bytes() + line(0) + line(2))
        assert run(spark, sink, renamed) == ReplayCounts(sent=2, already=3)
        assert run(spark, sink, renamed) == ReplayCounts(already=5)
    assert sorted(sink.values) == [b"v0"] * 3 + [b"v1", b"v2"]


def test_equal_lines_of_a_log_and_its_rotated_files_are_different_messages(spark: SparkSession, tmp_path: Path) -> None:
    file, rotated = tmp_path / "d", tmp_path / "d.1712345678901"
    backup, link = tmp_path / "d.old", tmp_path / "link"
    file.write_bytes(line(0) + line(1))
    rotated.write_bytes(line(0) * 2)
    backup.write_bytes(line(0) * 2 + line(1))
    link.symlink_to(file)
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, file, rotated, link, backup) == ReplayCounts(sent=4, already=3)
        assert run(spark, sink, rotated, file) == ReplayCounts(already=4)
    assert sorted(sink.values) == [b"v0"] * 3 + [b"v1"]


@pytest.mark.parametrize("name", ["d*", ""])
def test_a_log_is_sent_from_its_oldest_file(spark: SparkSession, tmp_path: Path, name: str) -> None:
    files = [tmp_path / "in" / each for each in ("d", "d.1712345678901", "d.1712345678902")]
    (tmp_path / "in").mkdir()
    for path, number in zip(files, (2, 0, 1), strict=True):
        path.write_bytes(line(number, value=b"%d" % number + b" " * 40 * number))
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, *files) == ReplayCounts(sent=3)
        assert run(spark, sink, tmp_path / "in" / name, state=f"{tmp_path}/2") == ReplayCounts(sent=3)
    assert [int(value) for value in sink.values] == [0, 1, 2] * 2


def test_a_state_directory_of_1_0_0_sends_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """For 1.0.0 each file was a log, so after a replay of all files its state is that of the file with most lines."""
    file, rotated = tmp_path / "d", tmp_path / "d.1712345678901"
    file.write_bytes(line(0))
    rotated.write_bytes(line(0) * 2)
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, rotated).sent == 2
        assert run(spark, sink, file, rotated) == ReplayCounts(sent=1, already=2)
    assert sink.values == [b"v0"] * 3


def test_a_last_line_without_a_newline_is_not_sent(spark: SparkSession, tmp_path: Path) -> None:
    file, keyed, out = tmp_path / "d", line(1, partition_key=12_345), io.StringIO()
    file.write_bytes(line(0) + keyed[:-3])
    with StreamSink(tmp_path / "s") as sink:
        assert run(spark, sink, file, progress=Progress("replay", out)) == ReplayCounts(sent=1)
        file.write_bytes(line(0) + keyed)
        assert run(spark, sink, file) == ReplayCounts(sent=1, already=1)
    assert [(message.value, message.partition_key) for message in sink.parsed] == [(b"v0", None), (b"v1", 12_345)]
    assert "/d: 1 last lines without a newline are incomplete, and are not sent\n" in out.getvalue()


@pytest.mark.parametrize(
    ("before", "after", "cut_count", "expected"),
    [
        (b"a\r\nb\n", b"", 0, ["a", "b"]),
        (b"a\nb", b"", 1, ["a"]),
        (b"a\nb", b"c\nd\n", 1, ["a"]),
        (b"a\nb\n", b"c\nd", 0, ["a", "b"]),
        (b"a\nb\n", b"c", 0, ["a", "b"]),
        (b"a", b"\n", 1, []),
        (b"", b"a\n", 0, []),
    ],
)
def test_only_lines_that_were_complete_at_the_start_are_read(
    spark: SparkSession, tmp_path: Path, *, before: bytes, after: bytes, cut_count: int, expected: list[str]
) -> None:
    """The daemon may write to the file during the replay."""
    file = tmp_path / "d"
    file.write_bytes(before)
    lines, counted = read_complete_lines(spark, str(file))
    with file.open("ab") as growing:
        growing.write(after)
    assert [row["line"] for row in lines.orderBy("position").collect()] == expected
    assert counted == cut_count


def test_each_discard_file_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for name, number in {"discard.log": 1, "discard.log.[1]": 2, "discard.log.%202": 3}.items():
        (tmp_path / name).write_bytes(line(number))
    (tmp_path / "latest").symlink_to(tmp_path / "discard.log")
    (tmp_path / "empty").mkdir()
    paths = [f"{tmp_path}/discard.log*", f"file://{tmp_path}/discard.log", f"{tmp_path}/latest", f"{tmp_path}"]
    values = [bytes(row["value"]) for row in read_discard_lines(spark, paths).collect()]
    assert sorted(values) == [b"v1", b"v2", b"v3"]
    assert read_discard_lines(spark, [f"{tmp_path}/empty"]).count() == 0


def test_a_compressed_file_is_read_whole(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d.gz").write_bytes(gzip.compress(b"a" * 100 + b"\nb\n"))
    lines, cut_count = read_complete_lines(spark, str(tmp_path / "d.gz"))
    assert (lines.count(), cut_count) == (2, 0)


def test_an_unconfirmed_chunk_requires_a_decision(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0))
    status = BarrierStatus.TIMED_OUT

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        if status is BarrierStatus.DONE:
            return all_delivered(barrier, received)
        return BarrierAnswer(barrier.token, status, received, 0, 0)

    with StreamSink(tmp_path / "s", answer) as sink:
        with pytest.raises(PythonException, match="BRUCE_TASK"):
            run(spark, sink, tmp_path / "d")
        with pytest.raises(DoubtfulError, match="--doubtful send or --doubtful skip"):
            run(spark, sink, tmp_path / "d")
        status = BarrierStatus.DONE
        assert run(spark, sink, tmp_path / "d", doubtful=DoubtfulPolicy.SEND) == ReplayCounts(sent=1)
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(already=1)


def test_a_chunk_that_was_never_written_whole_needs_no_decision(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").write_bytes(line(0))

    def die(_writer: DataFrameWriter, path: str) -> None:
        Path(path).mkdir()
        raise KeyboardInterrupt

    with StreamSink(tmp_path / "s") as sink:
        with monkeypatch.context() as patched:
            patched.setattr(DataFrameWriter, "parquet", die)
            with pytest.raises(KeyboardInterrupt):
                run(spark, sink, tmp_path / "d")
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(sent=1)
        assert run(spark, sink, tmp_path / "d") == ReplayCounts(already=1)


def test_an_unconfirmed_chunk_may_be_marked_as_sent(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0))

    def answer(barrier: Barrier, received: int) -> BarrierAnswer:
        return BarrierAnswer(barrier.token, BarrierStatus.TIMED_OUT, received, 0, 0)

    with StreamSink(tmp_path / "s", answer) as sink:
        with pytest.raises(PythonException, match="BRUCE_TASK"):
            run(spark, sink, tmp_path / "d")
        for policy, outcome in (
            (DoubtfulPolicy.SKIP, ReplayCounts(already=1)),
            (DoubtfulPolicy.SEND, ReplayCounts(sent=1)),
        ):
            assert run(spark, sink, tmp_path / "d", doubtful=policy, dry_run=True) == outcome
        assert run(spark, sink, tmp_path / "d", doubtful=DoubtfulPolicy.SKIP) == ReplayCounts(already=1)
