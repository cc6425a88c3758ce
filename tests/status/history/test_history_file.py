"""The file with the flow of the last hour, day and month."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.status.history import history_file
from bruce_mp.status.history.history_file import PERIODS, WHOLE, HistoryError, HistoryFile, StepAmounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOON: Final = 1_800_014_400  # a multiple of all steps
MINUTE: Final = StepAmounts(60.0, 120, 100, 10, 7, 2.0, 5.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[HistoryFile]:
    opened = HistoryFile(path)
    yield opened
    opened.close()


def test_a_step_sums_its_minutes_and_keeps_the_slowest_latency(file: HistoryFile) -> None:
    file.add(NOON + 60, {WHOLE: MINUTE})
    file.add(NOON + 120, {WHOLE: MINUTE._replace(held=3, p50_ms=None, p99_ms=None)})
    file.add(NOON + 180, {WHOLE: MINUTE._replace(p50_ms=1.0, p99_ms=9.0)})
    now = NOON + 180
    assert list(file.read(PERIODS["hour"], WHOLE, now)) == [NOON, NOON + 60, NOON + 120]
    assert file.read(PERIODS["day"], WHOLE, now) == {NOON: StepAmounts(180.0, 360, 300, 30, 7, 2.0, 9.0)}
    assert file.read(PERIODS["month"], WHOLE, now) == file.read(PERIODS["day"], WHOLE, now)


def test_topics_have_their_own_steps(file: HistoryFile) -> None:
    file.add(NOON + 60, {WHOLE: MINUTE, b"\xffnews": MINUTE._replace(received=1)})
    assert file.read(PERIODS["hour"], b"\xffnews", NOON + 60)[NOON].received == 1
    assert file.read(PERIODS["hour"], b"other", NOON + 60) == {}


def test_the_next_process_continues_a_step(file: HistoryFile, path: Path) -> None:
    file.add(NOON + 20, {WHOLE: MINUTE._replace(seconds=20.0)})
    file.close()
    again = HistoryFile(path)
    again.add(NOON + 60, {WHOLE: MINUTE._replace(seconds=30.0)})
    assert again.read(PERIODS["hour"], WHOLE, NOON + 60)[NOON][:2] == (50.0, 240)
    again.close()


@pytest.mark.exhaustive
def test_old_steps_expire_and_the_file_stops_growing(file: HistoryFile, path: Path) -> None:
    topics = {WHOLE: MINUTE, **{b"topic-%d" % number: MINUTE for number in range(20)}}
    sizes = []
    for day in range(1, 60):
        for write in range(12):
            file.add(NOON + 86_400 * day + 7200 * write + 60, topics)
        sizes.append(path.stat().st_size)
    assert len(file.read(PERIODS["month"], WHOLE, NOON + 86_400 * 60)) <= 360
    assert sizes[40:] == [sizes[40]] * len(sizes[40:])


def test_the_file_has_a_limit_whatever_the_topics(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(history_file, "MAX_BYTES", 1 << 16)
    file = HistoryFile(path)
    file.add(NOON + 1, {b"topic-%d" % each: MINUTE for each in range(100)})
    with pytest.raises(sqlite3.OperationalError) as caught:
        file.add(NOON + 1, {b"invented-%d" % each: MINUTE for each in range(10_000)})
    assert history_file.fault_of(caught.value) == "its disk or the file is full"
    assert path.stat().st_size <= 1 << 16
    file.add(NOON + 40 * 86_400, {WHOLE: MINUTE})
    file.close()


def test_the_oldest_steps_give_way_to_the_newest_in_a_full_file(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(history_file, "MAX_BYTES", 1 << 16)
    file = HistoryFile(path)
    writes = [NOON + 60 * number for number in range(1, 60)]
    for now in writes:
        file.add(now, {WHOLE: MINUTE, **{b"%d" % (now + each): MINUTE for each in range(20)}})
        assert now - 60 in file.read(PERIODS["hour"], WHOLE, now)
    kept = list(file.read(PERIODS["hour"], WHOLE, writes[-1]))
    assert 2 < len(kept) < len(writes)
    assert kept == [now - 60 for now in writes[-len(kept) :]]
    file.close()


@pytest.mark.parametrize("wrong_s", [400 * 86_400, 3600, -3600, -50 * 365 * 86_400])
def test_a_wrong_clock_costs_no_more_steps_than_it_lasted(file: HistoryFile, wrong_s: int) -> None:
    now = NOON
    for _ in range(60):
        now += 60
        file.add(now, {WHOLE: MINUTE})
    for _ in range(5):
        now += 60
        file.add(now + wrong_s, {WHOLE: MINUTE})
    now += 60
    file.add(now, {WHOLE: MINUTE})
    assert len(file.read(PERIODS["hour"], WHOLE, now)) >= 50
    assert file.read(PERIODS["day"], WHOLE, now)[NOON].seconds >= 300  # a clock an hour behind adds to it
    for _ in range(60):
        now += 60
        file.add(now, {WHOLE: MINUTE})
    assert list(file.read(PERIODS["hour"], WHOLE, now)) == [now - 60 * each for each in range(60, 0, -1)]


@pytest.mark.parametrize("damage", ["overwritten", "cut", "removed"])
def test_a_file_that_is_damaged_while_it_is_open_is_replaced(
    file: HistoryFile, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.add(NOON + 60, {WHOLE: MINUTE})
    if damage == "overwritten":
        path.write_bytes(b"no database" * 2000)
    elif damage == "cut":
        with path.open("r+b") as opened:
            opened.truncate(4096)
            opened.seek(24)
            opened.write(b"\xff" * 4)  # the change counter: SQLite reads the pages again
    else:
        path.unlink()
    file.add(NOON + 120, {WHOLE: MINUTE})
    file.add(NOON + 180, {WHOLE: MINUTE})
    assert list(file.read(PERIODS["hour"], WHOLE, NOON + 180)) == [NOON + 60, NOON + 120]
    (record,) = caplog.records
    assert "a new one replaces it" in record.getMessage()


def test_a_file_is_written_again_after_its_directory_was_away(path: Path) -> None:
    path = path.parent / "directory" / path.name
    path.parent.mkdir()
    file = HistoryFile(path)
    path.unlink()
    path.parent.rmdir()
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError):
            file.add(NOON + 60, {WHOLE: MINUTE})
    path.parent.mkdir()
    file.add(NOON + 120, {WHOLE: MINUTE})
    assert list(file.read(PERIODS["hour"], WHOLE, NOON + 120)) == [NOON + 60]
    file.close()


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_replaced(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(content)
    file = HistoryFile(path)
    file.add(NOON + 60, {WHOLE: MINUTE})
    assert len(file.read(PERIODS["hour"], WHOLE, NOON + 60)) == 1
    file.close()
    (record,) = caplog.records
    assert "a new one replaces it: another program wrote it." in record.getMessage()


def test_a_file_of_another_layout_is_replaced(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE steps (anything)")
        other.execute("PRAGMA user_version = 9")
    other.close()
    file = HistoryFile(path)
    file.add(NOON + 60, {WHOLE: MINUTE})
    file.close()


def test_a_file_that_is_being_written_is_named_so(
    file: HistoryFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "READ_TIMEOUT_S", 0.0)
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(HistoryError, match=r"^The history cannot be read now: it is being written\. Ask again\.$"):
        file.read(PERIODS["hour"], WHOLE, NOON)
    other.close()
