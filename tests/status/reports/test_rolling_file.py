"""The rotated file: sizes, names, modes, and disk errors."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line, parse_line
from bruce_mp.status.reports.rolling_file import FileWriteError, RollingFile
from support.full_disk import files_end_at

NOW_MS = 1_800_000_000_000
LINE = b"0123456\n"
WHOLE = format_line(
    DiscardLine(1, 2, LineEvent.DISCARD, "NO_MEM", b"a]b", b"key", b"value", 17, ((b"k", None), (b"l", b"w")), 16)
)


def made(path: Path, max_size: int = 20, max_archive: int = 1000) -> RollingFile:
    return RollingFile(path, max_size, max_archive, lambda: NOW_MS)


def rolled(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if each != path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "of" / "ours" / "discard.log"


def test_missing_parent_directories_are_created(path: Path) -> None:
    made(path).write([LINE])
    assert path.read_bytes() == LINE


def test_a_line_that_does_not_fit_is_written_to_a_new_file(path: Path) -> None:
    file = made(path)
    file.write([LINE] * 5)
    assert path.read_bytes() == LINE
    assert rolled(path) == [f"discard.log.{NOW_MS}", f"discard.log.{NOW_MS + 1}"]
    assert {each.read_bytes() for each in path.parent.iterdir() if each != path} == {LINE * 2}


def test_an_oversized_line_has_its_own_file(path: Path) -> None:
    made(path).write([LINE, b"x" * 50 + b"\n", LINE])
    assert path.read_bytes() == LINE
    assert len(rolled(path)) == 2


def test_a_full_file_is_rolled_at_the_start(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(21))
    made(path).prepare()
    assert path.stat().st_size == 0
    assert rolled(path) == [f"discard.log.{NOW_MS}"]


def test_a_file_with_room_is_appended_to(path: Path) -> None:
    made(path).write([LINE])
    made(path).write([LINE])
    assert path.read_bytes() == LINE * 2


def test_a_torn_last_line_is_ended_and_never_parses(path: Path) -> None:
    """Its end could be missing: a line without its partition key or headers must not pass for a whole one."""
    path.parent.mkdir(parents=True)
    for kept in range(1, len(WHOLE)):
        path.write_bytes(WHOLE + WHOLE[:kept])
        file = made(path, max_size=1000)
        file.prepare()
        file.write([WHOLE])
        first, torn, last = path.read_bytes().splitlines(keepends=True)
        assert (first, last) == (WHOLE, WHOLE)
        with pytest.raises(RemoteProtocolError):
            parse_line(torn)


def test_a_full_disk_leaves_a_torn_line_for_a_later_writer(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(WHOLE[:9])
    file = made(path, max_size=1000)
    with files_end_at(11), pytest.raises(FileWriteError, match="cannot be written"):
        file.write([WHOLE])
    assert path.read_bytes() == WHOLE[:9]
    file.write([WHOLE])
    assert path.read_bytes() == WHOLE[:9] + b" cut\n" + WHOLE


def test_the_oldest_files_are_removed_when_the_archive_is_full(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for number, size in ((5, 10), (40, 10), (300, 10)):
        path.with_name(f"discard.log.{number}").write_bytes(bytes(size))
    for name in ("discard.log.notes", "discard.log.bak.7", "other.log.1"):
        path.with_name(name).write_bytes(bytes(1000))
    made(path, max_archive=25).prepare()
    assert rolled(path) == [
        "discard.log.300",
        "discard.log.40",
        "discard.log.bak.7",
        "discard.log.notes",
        "other.log.1",
    ]


@pytest.mark.parametrize("umask", [0, 0o077])
def test_files_are_not_accessible_to_others(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made(path).write([LINE] * 3)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {0o660 & ~umask}
    assert not path.parent.stat().st_mode & 0o007


def test_a_world_writable_file_is_restricted(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    path.chmod(0o666)
    made(path).write([LINE])
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_directory_in_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(FileWriteError, match=r"cannot be opened: Is a directory\. .* set another path"):
        made(path).write([LINE])


def test_a_fifo_is_refused_without_waiting_for_a_reader(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(FileWriteError, match="cannot be opened"):
        made(path).write([LINE])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(FileWriteError, match="not a regular file"):
        made(path).write([LINE])
    os.close(reader)


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileWriteError, match="cannot be opened"):
        made(path).write([LINE])
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_whole_lines(path: Path) -> None:
    file = made(path, max_size=1000)
    with files_end_at(2 * len(LINE) + 3):
        with pytest.raises(FileWriteError, match="cannot be written"):
            file.write([LINE] * 3)
        assert path.read_bytes() == LINE * 2
        with pytest.raises(FileWriteError, match="cannot be written"):
            file.write([LINE])
    file.write([LINE])
    assert path.read_bytes() == LINE * 3


@pytest.mark.parametrize("act", ["moved", "removed", "replaced"])
def test_a_file_that_was_moved_is_opened_again(path: Path, act: str) -> None:
    file = made(path)
    file.write([LINE])
    if act == "removed":
        path.unlink()
    else:
        path.rename(path.with_name("aside"))
    if act == "replaced":
        path.touch()
    file.write([LINE])
    assert path.read_bytes() == LINE


def test_a_clock_that_goes_back_keeps_the_newest_files(path: Path) -> None:
    hours = iter((5, 4, 400_000, 3, 2, 1))
    file = RollingFile(path, 8, 16, lambda: next(hours) * 3_600_000)
    lines = [b"line  %d\n" % number for number in range(7)]
    file.write(lines)
    assert [(path.parent / name).read_bytes() for name in rolled(path)] == lines[4:6]


def test_an_old_file_that_cannot_be_removed_costs_no_line_and_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a sticky directory, after the daemon got another user."""
    file = made(path, 8, 0)

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    file.write([LINE, LINE, LINE])
    assert (path.read_bytes(), len(rolled(path))) == (LINE, 2)
    with pytest.raises(FileWriteError, match=r"log\.\d+ cannot be removed: Operation not permitted\."):
        file.raise_failed_removal()
    file.raise_failed_removal()
    with pytest.raises(FileWriteError, match="Operation not permitted"):
        file.prepare()
