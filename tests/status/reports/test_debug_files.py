"""Message debugging: selection of topics, the files, and the end by time or size."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING

import msgspec
import pytest

from bruce_mp.config.sections import MsgDebug
from bruce_mp.ipc.control_messages import MAX_MESSAGE_BYTES, DebugTopics
from bruce_mp.status.reports.debug_files import MessageDebug
from bruce_mp.status.reports.rolling_file import FileWriteError
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import Copy, CopyTarget
from support.full_disk import files_end_at

if TYPE_CHECKING:
    from pathlib import Path

LINE = b"ts: 5 topic: 4[news] key: 4[a2V5] value: 8[dmFsdWU=]\n"


class Made:
    def __init__(self, directory: Path, byte_limit: int = 1000) -> None:
        self.directory = directory
        self.now = 0.0
        self.announced: list[DebugTopics] = []
        self.counted: Tally[Counter] = Tally()
        config = MsgDebug(enable=True, path=str(directory), time_limit_s=60, byte_limit=byte_limit)
        self.debug = MessageDebug(config, self.announced.append, self._count, lambda: self.now)

    def _count(self, counter: Counter, amount: int) -> None:
        self.counted[counter] += amount

    def write(self, target: CopyTarget = CopyTarget.MSG_RECEIVE, topic: bytes = b"news", count: int = 1) -> None:
        self.debug.write([Copy(target, 1, 5, "", topic, b"key", b"value")] * count)

    def files(self) -> dict[str, int]:
        """Return the number of lines of each file."""
        if not self.directory.exists():
            return {}
        return {path.name: path.read_bytes().count(b"\n") for path in self.directory.iterdir()}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "debug")


def test_the_copies_of_chosen_topics_are_written(made: Made) -> None:
    assert made.debug.add(b"news")
    for count, target in enumerate((CopyTarget.MSG_RECEIVE, CopyTarget.MSG_SEND, CopyTarget.MSG_GOT_ACK), 1):
        made.write(target, count=count)
        made.write(target, b"other")
    assert made.files() == {"msg_receive": 1, "msg_send": 2, "msg_got_ack": 3}
    assert (made.directory / "msg_receive").read_bytes() == LINE
    assert not (made.directory / "msg_receive").stat().st_mode & 0o007


def test_selections_are_announced(made: Made) -> None:
    debug = made.debug
    assert [debug.add(b"a"), debug.add(b"b"), debug.add(b"a"), debug.remove(b"a"), debug.remove(b"a")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    debug.select_all()
    assert not debug.add(b"c")
    assert not debug.remove(b"b")
    debug.deselect_all()
    chosen = [DebugTopics((b"a",)), DebugTopics((b"a", b"b")), DebugTopics((b"b",)), DebugTopics(all_topics=True)]
    assert made.announced == [*chosen, DebugTopics()]


def test_every_selection_fits_in_a_control_message(made: Made) -> None:
    accepted = [made.debug.add(b"%0249d" % number) for number in range(1000)]
    assert 0 < sum(accepted) < 1000
    assert len(msgspec.msgpack.encode(made.announced[-1])) <= MAX_MESSAGE_BYTES


def test_a_new_session_removes_old_files_and_a_change_does_not(made: Made) -> None:
    made.debug.add(b"news")
    made.write()
    made.debug.add(b"more")
    made.write()
    assert made.files() == {"msg_receive": 2}
    made.debug.deselect_all()
    assert made.files() == {"msg_receive": 2}
    made.debug.select_all()
    assert made.files() == {}


def test_debugging_ends_after_its_time_limit(made: Made) -> None:
    made.debug.add(b"news")
    made.now = 59.9
    made.debug.check_deadline()
    made.debug.add(b"more")
    made.now = 119.8
    made.debug.check_deadline()
    assert made.announced[-1].has_topics, "the clock begins anew with each change"
    made.now = 120.0
    made.debug.check_deadline()
    made.debug.check_deadline()
    assert made.announced[2:] == [DebugTopics()]
    made.write()
    assert made.files() == {}


def test_debugging_ends_before_the_files_exceed_their_limit(tmp_path: Path) -> None:
    made = Made(tmp_path / "debug", byte_limit=3 * len(LINE))
    made.debug.select_all()
    made.write(CopyTarget.MSG_RECEIVE, count=2)
    made.write(CopyTarget.MSG_SEND, count=1)
    assert made.announced == [DebugTopics(all_topics=True)]
    made.write(CopyTarget.MSG_GOT_ACK, count=2)
    assert made.announced[1:] == [DebugTopics()]
    assert made.files() == {"msg_receive": 2, "msg_send": 1}


def test_truncated_files_are_written_further(made: Made) -> None:
    made.debug.truncate()
    made.debug.select_all()
    made.write(count=3)
    made.debug.truncate()
    made.write()
    assert made.files() == {"msg_receive": 1}
    assert (made.directory / "msg_receive").read_bytes() == LINE


def test_a_new_status_process_continues_the_files(made: Made) -> None:
    made.debug.add(b"news")
    made.write()
    successor = Made(made.directory)
    successor.debug.restore_selection(DebugTopics((b"news",)))
    successor.write()
    assert successor.files() == {"msg_receive": 2}
    assert not successor.announced


def test_a_full_disk_ends_debugging(made: Made) -> None:
    made.debug.add(b"news")
    topics = [b"news", b"news", b"not chosen", b"news", b"news"]
    with files_end_at(len(LINE) + 5), pytest.raises(FileWriteError, match=r"cannot be written: .*has ended"):
        made.debug.write([Copy(CopyTarget.MSG_SEND, 1, 5, "", topic, b"key", b"value") for topic in topics])
    assert made.announced[-1] == DebugTopics()
    assert made.counted == {Counter.MsgCopyLost: 3}


def test_a_debug_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "debug").touch()
    made = Made(tmp_path / "debug")
    with pytest.raises(FileWriteError, match="cannot be removed: Not a directory"):
        made.debug.select_all()
    assert not made.announced


def test_describe_lists_the_selected_topics(made: Made) -> None:
    assert made.debug.describe() == "No message debug topics are currently enabled\n"
    made.debug.add(b"news")
    made.debug.add(b"\xff]\n")
    assert made.debug.describe() == "topic: [news]\ntopic: [\\xff]\\x0a]\n"
    made.debug.select_all()
    assert made.debug.describe() == "All message debug topics are currently enabled\n"
