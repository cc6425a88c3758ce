"""The thread that writes copies to files."""

from __future__ import annotations

import errno
import time
from collections import Counter as Tally
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, cast

import msgspec

from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, parse_line
from bruce_mp.status.reports import copy_writer
from bruce_mp.status.reports.copy_writer import MAX_QUEUED_BYTES, CopyWriter, DiscardDestinations, DiscardFile
from bruce_mp.status.reports.rolling_file import FileWriteError, RollingFile
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import Copy, CopyTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from bruce_mp.status.reports.dead_letters import DeadLetterTopic
    from bruce_mp.status.reports.debug_files import MessageDebug


class Debug:
    """A copy file that stores copies after the test releases it."""

    def __init__(self) -> None:
        self.may = Event()
        self.copies: list[Copy] = []

    def write(self, copies: Sequence[Copy]) -> None:
        assert self.may.wait(20)
        if not copies[0].key:
            raise FileWriteError("/debug cannot be written: it is Sunday.")
        self.copies += copies


class Made:
    def __init__(self, path: Path | None, max_size: int = 10_000, max_archive: int = 10_000) -> None:
        self.counted: Tally[Counter] = Tally()
        self.debug = Debug()
        discards = DiscardFile(RollingFile(path, max_size, max_archive, lambda: 1), self._count) if path else None
        self.writer = CopyWriter(DiscardDestinations(discards), cast("MessageDebug", self.debug), self._count)

    def _count(self, counter: Counter, amount: int = 1) -> None:
        self.counted[counter] += amount

    def enqueue(self, *copies: Copy) -> None:
        self.writer.enqueue(msgspec.msgpack.encode(copies))

    def write_all(self) -> None:
        self.debug.may.set()
        self.writer.start()
        self.writer.stop()


def copy_of(target: CopyTarget, info: str = "", value: bytes = b"v", key: bytes = b"k") -> Copy:
    return Copy(target, 10, 20, info, b"t\xff\n", key, value, 7)


def test_each_copy_is_written_to_its_file(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.enqueue(copy_of(CopyTarget.DISCARDS, "NO_MEM"), copy_of(CopyTarget.MSG_SEND), copy_of(CopyTarget.DISCARDS))
    made.write_all()
    lines = [parse_line(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    rest = (b"t\xff\n", b"k", b"v", 7)
    assert lines == [
        DiscardLine(10, 20, LineEvent.DISCARD, "NO_MEM", *rest),
        DiscardLine(10, 20, LineEvent.DUPLICATE, "NONE", *rest),
    ]
    assert made.debug.copies == [copy_of(CopyTarget.MSG_SEND)]
    assert +made.counted == {Counter.DiscardLogLine: 2, Counter.DiscardCopySettled: 2}


def test_write_errors_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").mkdir()
    made = Made(tmp_path / "log")
    made.enqueue(*[copy_of(CopyTarget.DISCARDS)] * 3)
    made.enqueue(copy_of(CopyTarget.MSG_SEND, key=b""))
    made.enqueue(copy_of(CopyTarget.MSG_SEND))
    made.write_all()
    assert +made.counted == {Counter.MsgCopyLost: 3, Counter.DiscardCopySettled: 3}
    assert "Is a directory" in caplog.text
    assert "it is Sunday" in caplog.text
    assert len(made.debug.copies) == 1


def test_writing_resumes_when_the_file_is_writable_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    made = Made(tmp_path / "log")
    made.writer.start()
    made.debug.may.set()
    made.enqueue(copy_of(CopyTarget.DISCARDS))
    made.enqueue(copy_of(CopyTarget.MSG_SEND))
    while not made.debug.copies:
        pass
    (tmp_path / "log").rmdir()
    made.enqueue(copy_of(CopyTarget.DISCARDS))
    made.writer.stop()
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1
    assert +made.counted == {Counter.MsgCopyLost: 1, Counter.DiscardLogLine: 1, Counter.DiscardCopySettled: 2}


def test_an_old_file_that_cannot_be_removed_costs_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    made = Made(tmp_path / "log", max_size=8, max_archive=0)
    made.enqueue(*[copy_of(CopyTarget.DISCARDS)] * 3)
    made.write_all()
    assert +made.counted == {Counter.DiscardLogLine: 3, Counter.DiscardCopySettled: 3}
    assert "cannot be removed: Operation not permitted" in caplog.text


def test_no_discard_file_is_written_unless_configured(tmp_path: Path) -> None:
    made = Made(None)
    made.enqueue(copy_of(CopyTarget.DISCARDS))
    made.write_all()
    assert not list(tmp_path.iterdir())
    assert made.counted == {Counter.MsgCopyLost: 1, Counter.DiscardCopySettled: 1}


def test_invalid_copy_bytes_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made(tmp_path / "log")
    made.writer.enqueue(b"\xc1")
    made.enqueue(copy_of(CopyTarget.DISCARDS))
    made.write_all()
    assert "cannot be read" in caplog.text
    assert made.counted[Counter.DiscardLogLine] == 1


def test_the_queue_of_a_slow_disk_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made(tmp_path / "log")
    made.writer.start()
    large = copy_of(CopyTarget.MSG_SEND, value=bytes(MAX_QUEUED_BYTES // 2))
    for _ in range(4):
        made.enqueue(large)
    assert made.counted[Counter.MsgCopyLost] == 3
    assert "faster than the disk" in caplog.text
    made.debug.may.set()
    made.writer.stop()
    assert made.debug.copies == [large]


class DeadLetters:
    """A sender of dead letters that waits until it is stopped."""

    def __init__(self) -> None:
        self.lost = 0
        self.stopped = Event()

    def send(self, copies: Sequence[Copy]) -> None:
        assert self.stopped.wait(20)
        self.count_lost(copies)

    def count_lost(self, copies: Iterable[Copy]) -> None:
        self.lost += len(list(copies))

    def stop(self) -> None:
        self.stopped.set()


def test_dead_letters_that_are_not_sent_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is full at first, and the input does not read at the end."""
    monkeypatch.setattr(copy_writer, "_STOP_S", 0.2)
    made = Made(None)
    dead_letters = DeadLetters()
    made.writer.replace_destinations(DiscardDestinations(None, cast("DeadLetterTopic", dead_letters)))
    made.writer.start()
    discarded = copy_of(CopyTarget.DISCARDS, "NO_MEM", bytes(MAX_QUEUED_BYTES * 2 // 5))
    made.writer.enqueue(msgspec.msgpack.encode([discarded]))
    deadline = time.monotonic() + 20
    while made.counted[Counter.DiscardCopySettled] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for _ in range(3):
        made.enqueue(discarded)
    assert dead_letters.lost == 2
    made.writer.stop()
    assert dead_letters.lost == 4
    assert made.counted[Counter.MsgCopyLost] == 0, "no file lacks a line"
