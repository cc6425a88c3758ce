"""`bruce replay`: each line once, groups in doubt, and the state file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from bruce_mp.cli.commands import main
from bruce_mp.cli.replay import MAX_ATTEMPTS, MESSAGES_PER_GROUP, ReplayDaemon, ReplayError, ReplayRun
from bruce_mp.cli.replay_state import LineKey, ReplayState, ReplayStateError, UnconfirmedGroup
from bruce_mp.client import SendError
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line
from bruce_mp.protocol.client.inquiry import AttemptOutcome, InquiryAnswer
from bruce_mp.protocol.client.messages import Message, parse_message
from bruce_mp.protocol.client.replay_rules import DoubtfulPolicy, LineSelection, ReplayCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LIMIT = 10_000


class FakeDaemon:
    """A daemon that remembers attempts; `failures` fail, before or after the daemon got the attempt.

    The end of a `late` try stays unread until `read_late`.
    """

    def __init__(self) -> None:
        self.address = self.identity = "/in"
        self.late: dict[str, list[bytes]] = {}
        self.attempts: dict[str, list[bytes]] = {}
        self.failures: list[str] = []
        self.since_ms = 0
        self.outcome = AttemptOutcome.SETTLED
        self.reasons: dict[DiscardReason | int, int] = {}

    def send(self, name: str, messages: Sequence[bytes], max_message: int) -> Counter[str]:
        assert max_message == LIMIT
        failure = self.failures.pop() if self.failures else ""
        if name in self.attempts:
            raise SendError("An earlier attempt of this name is complete.")
        if failure == "late":
            self.late[name] = list(messages)
        elif failure != "before":
            self.attempts[name] = list(messages)
        if failure:
            raise SendError(f"{failure}.")
        return Counter()

    def inquire(self, name: str = "") -> InquiryAnswer:
        outcome = self.outcome if name in self.attempts else AttemptOutcome.NONE
        return InquiryAnswer(b"", outcome, self.since_ms, LIMIT, LIMIT, reasons=self.reasons)

    await_settled = inquire

    def read_late(self) -> None:
        """Complete the late attempts with unused names."""
        for name, messages in self.late.items():
            self.attempts.setdefault(name, messages)
        self.late.clear()

    @property
    def values(self) -> list[bytes]:
        parsed = [parse_message(data) for messages in self.attempts.values() for data in messages]
        return [message.value for message in parsed if isinstance(message, Message)]


def line(number: int, **changed: Any) -> bytes:
    given = {"topic": b"t", "key": b"", "value": b"v%d" % number, "info": "NO_MEM", **changed}
    return format_line(DiscardLine(5000, 1000 + number, LineEvent.DISCARD, **given))


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ReplayState]:
    with ReplayState(tmp_path / "state") as opened:
        yield opened


def new_run(state: ReplayState, daemon: FakeDaemon, doubtful: DoubtfulPolicy = DoubtfulPolicy.REFUSE) -> ReplayRun:
    return ReplayRun(state, cast("ReplayDaemon", daemon), LineSelection(), doubtful)


def replay(
    state: ReplayState, daemon: FakeDaemon, file: Path, doubtful: DoubtfulPolicy = DoubtfulPolicy.REFUSE
) -> ReplayRun:
    run = new_run(state, daemon, doubtful)
    run.resolve()
    run.send_file(file, dry_run=False)
    run.finish()
    return run


def test_each_line_is_sent_once_in_order_and_after_a_rename(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path
) -> None:
    count = MESSAGES_PER_GROUP + 5
    file = tmp_path / "d"
    file.write_bytes(b"".join(map(line, range(count))) + line(0) + b"no line\n" + line(1, info="SLAB_DELIVERED"))
    assert replay(state, daemon, file).counts == ReplayCounts(count + 1, 0, 0, 1, 1)
    assert len(daemon.attempts) == 2
    assert daemon.values == [*(b"v%d" % number for number in range(count)), b"v0"]
    renamed = file.rename(tmp_path / "renamed")
    renamed.write_bytes(renamed.read_bytes() + line(0) + line(count))
    assert replay(state, daemon, renamed).counts == ReplayCounts(2, count + 1, 0, 1, 1)
    assert daemon.values[-2:] == [b"v0", b"v%d" % count]


def test_a_dry_run_counts_and_sends_nothing(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1))
    run = new_run(state, daemon)
    run.send_file(tmp_path / "d", dry_run=True)
    assert (run.counts, daemon.attempts) == (ReplayCounts(sent=2), {})
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=2)


def test_a_dry_run_does_not_count_unconfirmed_messages_as_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "killed").write_bytes(line(0) + line(1))
    (tmp_path / "d").write_bytes(line(0) + line(1) + line(2))
    with ReplayState(tmp_path / "state") as state:
        state.begin(KILLED, _keys_of(tmp_path / "killed"))
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state"), "--dry-run"]
    assert main(["replay", str(tmp_path / "d"), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("1 to send, 0 replayed before, 0 filtered out")
    assert "2 messages of a killed run may be in Kafka or not" in printed.err
    with ReplayState(tmp_path / "state") as state:
        assert state.unconfirmed_groups() == [KILLED]


def test_too_large_messages_stay_for_another_run(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1, value=bytes(LIMIT)))
    for sent in (1, 0):
        run = replay(state, daemon, tmp_path / "d")
        assert (run.counts.sent, run.too_large_count) == (sent, 1)


@pytest.mark.parametrize("failure", ["before", "after"])
def test_a_broken_connection_loses_and_repeats_nothing(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path, failure: str
) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures = [failure] * (MAX_ATTEMPTS - 1)
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=2)
    assert daemon.values == [b"v0", b"v1"]
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(already=2)


def test_repeated_failures_end_the_run_and_the_next_one_continues(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path
) -> None:
    (tmp_path / "d").write_bytes(line(0))
    daemon.failures = ["before"] * MAX_ATTEMPTS
    with pytest.raises(ReplayError, match="5 attempts failed: before"):
        replay(state, daemon, tmp_path / "d")
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=1)
    assert daemon.values == [b"v0"]


@pytest.mark.parametrize("lates", [1, 3])
def test_a_late_end_of_an_earlier_try_repeats_nothing(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path, lates: int
) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures = ["late"] * lates
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=2)
    daemon.read_late()
    assert daemon.values == [b"v0", b"v1"]


@pytest.mark.parametrize("is_read_before", [True, False])
def test_a_late_end_of_a_killed_run_repeats_nothing(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path, *, is_read_before: bool
) -> None:
    """The end is read after the next run's inquiry, before or after its try."""
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures = ["late"] * MAX_ATTEMPTS
    with pytest.raises(ReplayError, match="5 attempts failed: late"):
        replay(state, daemon, tmp_path / "d")
    (tmp_path / "d").write_bytes(line(0) + line(1) + line(2))
    run = new_run(state, daemon)
    run.resolve()
    if is_read_before:
        daemon.read_late()
    run.send_file(tmp_path / "d", dry_run=False)
    run.finish()
    daemon.read_late()
    assert run.counts == ReplayCounts(sent=3)
    assert daemon.values == [b"v0", b"v1", b"v2"]
    assert state.unconfirmed_groups() == []


def test_an_incomplete_group_needs_all_its_lines_or_a_decision(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "d"
    file.write_bytes(line(0) + line(1))
    state.begin(KILLED, _keys_of(file))
    file.write_bytes(line(1) + line(2))
    with pytest.raises(ReplayError, match="only a part of their lines"):
        replay(state, daemon, file)
    assert daemon.values == [b"v2"]
    assert replay(state, daemon, file, DoubtfulPolicy.SEND).counts == ReplayCounts(sent=1, already=1)
    assert daemon.values == [b"v2", b"v1"]
    assert replay(state, daemon, file).counts == ReplayCounts(already=2)


def test_a_daemon_that_forgets_during_the_run_stops_it(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0))
    daemon.failures, daemon.since_ms = ["before"], 1 << 60
    with pytest.raises(ReplayError, match="run again, because an attempt failed: before"):
        replay(state, daemon, tmp_path / "d", DoubtfulPolicy.SEND)
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=1)


def test_a_daemon_is_identified_by_host_user_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "one")
    monkeypatch.setattr("os.geteuid", lambda: 7)
    assert ReplayDaemon("/in", 1).identity == "/in on one for user 7"
    assert ReplayDaemon(9, 1).identity == "127.0.0.1:9 on one"


def test_messages_that_may_be_in_kafka_and_cut_lines_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d").write_bytes(line(0, info="SLAB_SENT") + line(1) + line(2).removesuffix(b"\n"))
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state"), "--dry-run"]
    assert main(["replay", str(tmp_path / "d"), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("1 to send, 0 replayed before, 0 filtered out")
    assert "1 messages were left out, because Kafka has or may have them" in printed.err
    assert "1 last lines without a newline are incomplete, and were not sent" in printed.err


def test_abandoned_messages_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").write_bytes(line(0, info="ABANDONED_ATTEMPT") + line(1))
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state"), "--dry-run"]
    assert main(["replay", str(tmp_path / "d"), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("1 to send, 0 replayed before, 0 filtered out")
    assert "1 messages of incomplete fenced attempts (ABANDONED_ATTEMPT) were left out" in printed.err
    assert main(["replay", str(tmp_path / "d"), *options, "--include-abandoned"]) == 0
    printed = capsys.readouterr()
    assert (printed.out.startswith("2 to send"), printed.err) == (True, "")


ROTATED = ".1800000000000"


def test_equal_lines_of_a_rotated_log_are_different_messages(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path
) -> None:
    """The same message came several times within a millisecond, while the daemon rotated the file."""
    log, rotated, archive = tmp_path / "d", tmp_path / f"d{ROTATED}", tmp_path / "archive"
    log.write_bytes(line(0) * 3 + line(1))
    rotated.write_bytes(line(0) * 2)
    archive.write_bytes(rotated.read_bytes() + log.read_bytes() + line(2))
    run = new_run(state, daemon)
    for path in (log, rotated):
        run.send_file(path, dry_run=False)
    assert (run.counts, run.copy_count) == (ReplayCounts(sent=6), 0)
    run.send_file(archive, dry_run=False)
    assert (run.counts, run.copy_count) == (ReplayCounts(sent=7), 6)
    assert daemon.values == [*[b"v0"] * 3, b"v1", *[b"v0"] * 2, b"v2"]
    assert replay(state, daemon, archive).counts == ReplayCounts(already=7)


@pytest.mark.parametrize("name", ["archive", "d.20261123", f"of/d{ROTATED}", f"d{ROTATED}.bak"])
def test_equal_lines_of_other_files_are_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "of").mkdir()
    for each in ("d", name):
        (tmp_path / each).write_bytes(line(0) + line(1))
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state"), "--dry-run"]
    assert main(["replay", str(tmp_path / "d"), str(tmp_path / name), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("2 to send, 0 replayed before")
    assert "2 lines are in two files, and count once" in printed.err


def test_a_log_is_sent_from_its_oldest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Path] = []
    monkeypatch.setattr(ReplayRun, "send_file", lambda _, path, **__: sent.append(path))
    files = [tmp_path / "d", tmp_path / "d.1700000000001", tmp_path / "d.1700000000002"]
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state")]
    assert main(["replay", *map(str, files), *options]) == 0
    assert sent == [*files[1:], files[0]]


def test_a_second_name_of_a_file_has_no_effect(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0))
    (tmp_path / f"d{ROTATED}").hardlink_to(tmp_path / "d")
    run = new_run(state, daemon)
    for path in (tmp_path / "d", tmp_path / f"d{ROTATED}", tmp_path / "d"):
        run.send_file(path, dry_run=False)
    assert (run.counts, run.copy_count, daemon.values) == (ReplayCounts(sent=1), 0, [b"v0"])


def test_messages_with_lost_counts_are_reported(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has the attempt, but a kill took the numbers of delivered and discarded messages."""
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures, daemon.outcome = ["after"], AttemptOutcome.UNCOUNTED
    monkeypatch.setattr("bruce_mp.cli.replay.ReplayDaemon", lambda *_: daemon)
    options = ["--stream-socket-path", "/in", "--state", str(tmp_path / "state")]
    assert main(["replay", str(tmp_path / "d"), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("2 sent")
    assert "2 messages have an unknown outcome" in printed.err
    assert daemon.values == [b"v0", b"v1"]
    assert main(["replay", str(tmp_path / "d"), *options]) == 0


def test_the_outcome_says_how_to_send_discarded_messages_again(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures, daemon.reasons = ["after"], {DiscardReason.BAD_TOPIC: 1}
    monkeypatch.setattr("bruce_mp.cli.replay.ReplayDaemon", lambda *_: daemon)
    options = ["--stream-socket-path", "/in", "--state", str(tmp_path / "state")]
    assert main(["replay", str(tmp_path / "d"), *options]) == 1
    error = capsys.readouterr().err
    assert "the daemon discarded 1 of the sent messages: BAD_TOPIC 1." in error
    assert "replay their new lines in its discard file" in error


def test_a_cut_line_is_sent_when_it_is_complete(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1).removesuffix(b"\n"))
    run = replay(state, daemon, tmp_path / "d")
    assert (run.counts, run.cut_line_count, daemon.values) == (ReplayCounts(sent=1), 1, [b"v0"])
    (tmp_path / "d").write_bytes(line(0) + line(1))
    assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=1, already=1)


KILLED = UnconfirmedGroup("replay-1", "/in", 500)


class Doubt(NamedTuple):
    """The daemon's knowledge of a killed run's group, and the lines that the next run sends; None if it refuses."""

    is_known: bool
    since_ms: int
    address: str
    resent: int | None


@pytest.mark.parametrize(
    "doubt",
    [
        pytest.param(Doubt(True, 900, "/in", 0), id="complete"),
        pytest.param(Doubt(False, 400, "/in", 1), id="never complete"),
        pytest.param(Doubt(False, 900, "/in", None), id="forgotten"),
        pytest.param(Doubt(True, 0, "/other", None), id="another daemon"),
    ],
)
def test_the_daemon_decides_about_the_group_of_a_killed_run(
    state: ReplayState, daemon: FakeDaemon, tmp_path: Path, doubt: Doubt
) -> None:
    (tmp_path / "d").write_bytes(line(0))
    state.begin(KILLED._replace(daemon=doubt.address), _keys_of(tmp_path / "d"))
    daemon.since_ms = doubt.since_ms
    if doubt.is_known:
        daemon.attempts[KILLED.name] = []
    if doubt.resent is None:
        with pytest.raises(ReplayError, match="--doubtful send or --doubtful skip"):
            replay(state, daemon, tmp_path / "d")
        assert replay(state, daemon, tmp_path / "d", DoubtfulPolicy.SEND).counts == ReplayCounts(sent=1)
    else:
        assert replay(state, daemon, tmp_path / "d").counts == ReplayCounts(sent=doubt.resent, already=1 - doubt.resent)
    assert state.unconfirmed_groups() == []


def test_doubtful_messages_may_be_skipped(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0))
    state.begin(KILLED._replace(daemon="/other"), _keys_of(tmp_path / "d"))
    assert replay(state, daemon, tmp_path / "d", DoubtfulPolicy.SKIP).counts == ReplayCounts(already=1)


def _keys_of(file: Path) -> list[LineKey]:
    return [LineKey(sha256(data.rstrip()).digest(), 1) for data in file.read_bytes().splitlines()]


def test_discards_of_an_unanswered_group_are_counted(state: ReplayState, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(line(0) + line(1))
    daemon.failures, daemon.reasons = ["after"], {DiscardReason.BAD_TOPIC: 1, 99: 1}
    assert replay(state, daemon, tmp_path / "d").discard_counts == {"BAD_TOPIC": 1, "REASON_99": 1}


def test_a_second_run_with_the_same_state_is_refused(state: ReplayState, tmp_path: Path) -> None:
    assert state.unconfirmed_groups() == []
    with pytest.raises(ReplayStateError, match=r"in use by another replay\. Wait until that replay ends"):
        ReplayState(tmp_path / "state")


def test_a_state_that_cannot_be_opened_names_no_other_state_as_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(ReplayStateError, match=r"unable to open database file.* a new --state would send all lines"):
        ReplayState(tmp_path / "state")


def test_a_failed_write_of_the_state_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    def overfill() -> None:
        with ReplayState(tmp_path / "state") as opened:
            opened._database.execute("pragma max_page_count = 4")
            opened.begin(KILLED, [LineKey(bytes([number]) * 32, 1) for number in range(250)])

    with pytest.raises(ReplayStateError, match="cannot be read or written: database or disk is full"):
        overfill()
    with ReplayState(tmp_path / "state") as opened:
        assert opened.unconfirmed_groups() == []


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--timeout", "-1"), "argument --timeout: -1 is not a number of seconds from 0.1"),
        (("--timeout", "nan"), "argument --timeout: nan is not a number of seconds from 0.1"),
        (("--timeout", "long"), "argument --timeout: long is not a number of seconds from 0.1"),
        (("--timeout", "1e10"), "argument --timeout: 1e10 is not a number of seconds from 0.1 to 1000000"),
        (("--port", "65536"), "argument --port: 65536 is not an integer from 1 to 65535"),
    ],
)
def test_an_invalid_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str], text: str
) -> None:
    target = () if option[0] == "--port" else ("--port", "9000")
    with pytest.raises(SystemExit) as end:
        main(["replay", "d", "--state", str(tmp_path / "state"), *target, *option])
    assert (end.value.code, text in capsys.readouterr().err) == (2, True)


def test_another_file_is_not_taken_for_a_state(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else, longer than a header\n" * 100)
    with pytest.raises(ReplayStateError, match="is not the state of a replay"):
        ReplayState(tmp_path / "other")


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (slice(4096, None), "is damaged: database disk image is malformed. Restore it from a backup"),
        (slice(0, 16), "not the state of a replay, or damaged at its start: .* a new --state would send all lines"),
    ],
)
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_damaged_state_names_no_other_state_as_the_remedy(
    tmp_path: Path, damaged: slice, text: str, is_cut_off: bool
) -> None:
    path = tmp_path / "state"
    lines = [LineKey(bytes([number]) * 32, 1) for number in range(250)]
    with ReplayState(path) as opened:
        opened.begin(KILLED, lines)
    data = bytearray(path.read_bytes())
    data[damaged] = b"" if is_cut_off else b"\xff" * len(data[damaged])
    path.write_bytes(data)

    def read() -> None:
        with ReplayState(path) as opened:
            opened.contains(lines[0])

    with pytest.raises(ReplayStateError, match=text) as refusal:
        read()
    assert "Give another --state" not in str(refusal.value)


def test_a_missing_daemon_or_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--stream-socket-path", str(tmp_path / "none"), "--state", str(tmp_path / "state")]
    (tmp_path / "d").write_bytes(line(0))
    assert main(["replay", str(tmp_path / "d"), *options]) == 1
    assert f"{tmp_path}/none: no daemon answers" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "missing"), *options, "--dry-run"]) == 1
    assert f"{tmp_path}/missing: No such file or directory." in capsys.readouterr().err


def test_an_empty_file_is_not_taken_for_a_new_state(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(ReplayStateError, match="is empty"):
        ReplayState(tmp_path / "state")


def test_a_path_without_end_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert main(["replay", str(loop), "--state", str(tmp_path / "state"), "--stream-socket-path", str(loop)]) == 1
    assert f"{loop}: Too many levels of symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["chunks(id integer)", "accounts(id integer)"])
def test_the_database_of_another_program_is_refused_unchanged(tmp_path: Path, table: str) -> None:
    path = tmp_path / "foreign"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"create table {table}")
    before = path.read_bytes()
    with pytest.raises(ReplayStateError, match="is not the state of a replay"):
        ReplayState(path)
    assert path.read_bytes() == before


def test_a_state_file_of_an_earlier_release_opens(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state")) as database:
        database.executescript("""
            create table if not exists chunks(
                name text primary key, address text not null, started_ms integer not null,
                confirmed integer not null default 0);
            create table if not exists lines(
                hash blob, number integer, chunk text not null, primary key (hash, number)) without rowid;
            insert into chunks values ('a', 'b', 1, 0);
        """)
    with ReplayState(tmp_path / "state") as state:
        assert state.unconfirmed_groups() == [UnconfirmedGroup("a", "b", 1)]
