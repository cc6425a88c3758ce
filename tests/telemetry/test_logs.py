from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.sections import LogFile, Logging
from bruce_mp.errors import StartError
from bruce_mp.telemetry import logs
from bruce_mp.telemetry.logs import NOTICE, RepeatFilter, set_up_logging
from support.processes import time_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("bruce_mp.test")


@pytest.fixture(autouse=True)
def restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bruce.log"


def to_file(path: Path, mode: int | None = None, level: str = "NOTICE") -> Logging:
    return Logging(level=level, stdout_stderr=False, file=LogFile(enable=True, path=str(path), mode=mode))  # type: ignore[arg-type]


def write_lines(count: int) -> None:
    for _ in range(count):
        log.warning("x" * 1000, extra={"is_limited": True})


def test_a_line_has_time_process_and_level(path: Path) -> None:
    set_up_logging(to_file(path), "router")
    log.warning("Broker %d is gone.", 3)
    line = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC " + rf"bruce\[router {os.getpid()}\] WARNING: Broker 3 is gone\.\n"
    )
    assert re.fullmatch(line, path.read_text())


def test_client_data_cannot_forge_a_line(path: Path) -> None:
    set_up_logging(to_file(path), "router")
    log.error("Topic %s is bad.", "a\n2026-01-01 forged\x1b[31m\0\u202e\udcff")
    (line,) = path.read_text().splitlines()
    assert line.endswith(r"ERR: Topic a\x0a2026-01-01 forged\x1b[31m\x00\xe2\x80\xae\xed\xb3\xbf is bad.")


def test_times_are_utc(path: Path) -> None:
    set_up_logging(to_file(path), "router")
    record = logging.makeLogRecord({"msg": "x", "levelno": 40, "levelname": "ERR", "created": 1.5, "msecs": 500.0})
    logging.getLogger().handle(record)
    assert path.read_text().startswith("1970-01-01 00:00:01.500 UTC ")


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("EMERG", []),
        ("CRIT", ["CRIT"]),
        ("ERR", ["CRIT", "ERR"]),
        ("WARNING", ["CRIT", "ERR", "WARNING"]),
        ("NOTICE", ["CRIT", "ERR", "WARNING", "NOTICE"]),
        ("INFO", ["CRIT", "ERR", "WARNING", "NOTICE", "INFO"]),
        ("DEBUG", ["CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"]),
    ],
)
def test_levels_have_the_names_of_syslog(path: Path, level: str, written: list[str]) -> None:
    set_up_logging(to_file(path, level=level), "supervisor", must_open=True)
    log.critical("c")
    log.error("e")
    log.warning("w")
    log.log(NOTICE, "n")
    log.info("i")
    log.debug("d")
    assert re.findall(r"\] (\w+):", path.read_text()) == written


def test_warnings_are_written_to_stderr_and_the_rest_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Logging(), "router")
    log.warning("bad")
    log.log(NOTICE, "good")
    out, err = capsys.readouterr()
    assert "bad" in err
    assert "bad" not in out
    assert "good" in out
    assert "good" not in err


def test_a_daemon_without_a_log_still_warns(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Logging(stdout_stderr=False), "router")
    log.warning("bad")
    log.log(NOTICE, "good")
    out, err = capsys.readouterr()
    assert "bad" in err
    assert "good" not in out + err


def test_a_log_file_replaces_stderr(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(to_file(path), "router")
    log.warning("bad")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o666, 0o666), (0o600, 0o600)])
def test_the_file_has_the_configured_mode(path: Path, mode: int | None, expected: int) -> None:
    umask = os.umask(0o027)
    set_up_logging(to_file(path, mode), "supervisor", must_open=True)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == expected


def test_a_moved_file_is_reopened(path: Path) -> None:
    set_up_logging(to_file(path), "router")
    log.warning("first")
    path.rename(path.with_name("old"))
    log.warning("second")
    assert "second" in path.read_text()


def test_a_full_disk_loses_lines_and_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(to_file(Path("/dev/full")), "router")
    log.warning("first")
    log.error("second")
    assert capsys.readouterr().err == (
        "bruce: The log file /dev/full cannot be written: No space left on device. Free disk space, or make the "
        "daemon's user the owner of the file and its directory; lines are lost until then.\n"
    )


def test_a_removed_directory_loses_lines_until_it_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "log"
    home.mkdir()
    set_up_logging(to_file(home / "bruce.log"), "router")
    home.rename(tmp_path / "old")
    log.warning("first")
    log.error("second")
    assert capsys.readouterr().err.count("cannot be written: No such file or directory.") == 1
    home.mkdir()
    log.critical("third")
    log.critical("fourth")
    third, report, fourth = (home / "bruce.log").read_text().splitlines()
    assert f" WARNING: The log file {home}/bruce.log did not accept 2 log lines before this: " in report
    assert third.endswith("third")
    assert fourth.endswith("fourth")


def test_a_file_that_cannot_be_opened_is_named(path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot be opened: No such file .*make the daemon's user the owner of both"):
        set_up_logging(to_file(path / "nowhere"), "supervisor", must_open=True)


def test_a_pipe_without_a_reader_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(path)
    late_reader = threading.Timer(time_limit(10), path.read_bytes)  # ends the test if the call waits for a reader
    late_reader.start()
    with pytest.raises(StartError, match="cannot be opened: it is a pipe that no program reads"):
        set_up_logging(to_file(path), "supervisor", must_open=True)
    late_reader.cancel()
    set_up_logging(to_file(path), "router")
    log.warning("lost")
    assert "cannot be written: No such device or address" in capsys.readouterr().err


def test_a_pipe_whose_reader_hangs_only_loses_lines(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    set_up_logging(to_file(path), "router")
    writer = threading.Thread(target=write_lines, args=(1000,), daemon=True)
    writer.start()
    writer.join(time_limit(10))
    is_hanging = writer.is_alive()
    text = os.read(reader, 1 << 20).decode()
    log.error("It reads again.")
    text += os.read(reader, 1 << 20).decode()
    os.close(reader)
    assert not is_hanging
    assert "cannot be written: " in capsys.readouterr().err
    *written, last, report = text.splitlines()
    assert all(line.endswith("WARNING: " + "x" * 1000) for line in written)
    assert f" did not accept {1000 - len(written)} log lines before this: " in report
    assert last.endswith("It reads again.")


def test_a_cut_line_does_not_join_the_next_one(path: Path) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    set_up_logging(to_file(path), "router")
    log.warning("y" * (1 << 20))
    os.read(reader, 1 << 20)
    log.warning("next")
    cut_end, line, report = os.read(reader, 1 << 20).decode().splitlines()
    os.close(reader)
    assert not cut_end
    assert "did not accept 1 log line before this" in report
    assert line.endswith("next")


def test_a_process_works_without_its_log_file_until_it_can_be_opened(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(to_file(path / "bruce.log"), "router")
    log.warning("first")
    assert "cannot be written: No such file or directory. Free disk space, or make" in capsys.readouterr().err
    path.mkdir()
    log.warning("second")
    assert "second" in (path / "bruce.log").read_text()


def test_a_reader_of_stderr_that_hangs_only_loses_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, pipe = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as file, os.fdopen(pipe, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        set_up_logging(Logging(stdout_stderr=False), "router")
        writer = threading.Thread(target=write_lines, args=(1000,), daemon=True)
        writer.start()
        writer.join(time_limit(10))
        is_hanging = writer.is_alive()
        written_count = file.read(1 << 20).count(b"\n")
        log.error("It reads again.")
        last, report = file.read(1 << 20).splitlines()
        assert b"Standard error did not accept %d log lines before this: " % (1000 - written_count) in report
        assert last.endswith(b"It reads again.")
        assert not is_hanging


def test_a_long_line_does_not_wait_for_a_reader_of_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, pipe = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as file, os.fdopen(pipe, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        set_up_logging(Logging(stdout_stderr=False), "router")
        writer = threading.Thread(target=log.warning, args=("y" * 100_000,), daemon=True)
        writer.start()
        writer.join(time_limit(10))
        is_hanging = writer.is_alive()
        file.read(1 << 20)
        log.error("It reads again.")
        cut_end, last, report = file.read(1 << 20).splitlines()
        assert not is_hanging
        assert not cut_end
        assert last.endswith(b"It reads again.")
        assert b"Standard error did not accept 1 log line before this: " in report


def test_the_file_of_another_user_keeps_its_mode(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    set_up_logging(to_file(path, 0o600), "supervisor", must_open=True)
    log.warning("written")
    assert "written" in path.read_text()


def test_syslog_lines_have_the_syslog_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SYSLOG_SOCKET", tmp_path / "devlog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "devlog"))
        set_up_logging(Logging(syslog=True, stdout_stderr=False), "router")
        log.log(NOTICE, "good")
        assert syslog.recv(1000) == b"<29>bruce[%d]: router: good\0" % os.getpid()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_syslog_that_hangs_only_loses_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind
) -> None:
    monkeypatch.setattr(logs, "_SYSLOG_SOCKET", tmp_path / "devlog")
    with socket.socket(socket.AF_UNIX, kind) as syslog:
        syslog.bind(str(tmp_path / "devlog"))
        if kind is socket.SOCK_STREAM:
            syslog.listen(1)
        set_up_logging(Logging(syslog=True, stdout_stderr=False), "router")
        writer = threading.Thread(target=write_lines, args=(1000,), daemon=True)
        writer.start()
        writer.join(time_limit(10))
        assert not writer.is_alive()
        if kind is socket.SOCK_DGRAM:
            syslog.setblocking(False)
            written_count = len(received(syslog))
            log.error("It reads again.")
            last, report = received(syslog)
            assert b"Syslog did not accept %d log lines before this: " % (1000 - written_count) in report
            assert b"It reads again." in last


def received(syslog: socket.socket) -> list[bytes]:
    datagrams = []
    with suppress(BlockingIOError):
        while True:
            datagrams.append(syslog.recv(10_000))
    return datagrams


@pytest.mark.parametrize(("name", "place"), [("syslog", "_SYSLOG_SOCKET"), ("journal", "_JOURNALD_SOCKET")])
def test_a_missing_destination_is_reported_once_and_not_fatal(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, place, tmp_path / "nowhere")
    set_up_logging(Logging(syslog=name == "syslog", journald=name == "journal"), "router")
    log.warning("bad")
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert f"There is no {name} at" in err[0]


def test_a_missing_syslog_is_reported_by_the_supervisor_without_other_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "_SYSLOG_SOCKET", tmp_path / "devlog")
    for process in ("supervisor", "router"):
        set_up_logging(Logging(syslog=True, stdout_stderr=False), process)
    log.warning("bad")
    assert capsys.readouterr().err.count("There is no syslog at") == 1


def record(created: float, line: int = 1, about: object = None) -> logging.LogRecord:
    return logging.makeLogRecord({"created": created, "pathname": "x.py", "lineno": line, "about": about})


def test_repeated_lines_are_suppressed_for_30_s_and_counted() -> None:
    repeats = RepeatFilter()
    assert [repeats.filter(record(when)) for when in (0, 1, 29.9)] == [True, False, False]
    late = record(30)
    assert repeats.filter(late)
    assert late.more == 2  # type: ignore[attr-defined]
    assert not repeats.filter(record(59))


def test_lines_of_other_places_and_subjects_are_not_suppressed() -> None:
    repeats = RepeatFilter()
    items = [record(0), record(0, line=2), record(0, about="a"), record(0, about="b"), record(0, about="a")]
    assert [repeats.filter(item) for item in items] == [True, True, True, True, False]


def test_a_clock_that_is_set_back_suppresses_nothing() -> None:
    repeats = RepeatFilter()
    assert repeats.filter(record(1000))
    assert repeats.filter(record(10))


def test_the_repeat_filter_is_bounded() -> None:
    repeats = RepeatFilter()
    for line in range(3000):
        repeats.filter(record(0, line))
    assert len(repeats._sites) == 1000


def test_a_line_states_the_number_of_suppressed_lines(path: Path) -> None:
    set_up_logging(to_file(path), "router")
    for created in (0.0, 1.0, 2.0, 31.0):
        logging.getLogger().handle(
            logging.makeLogRecord({"created": created, "msg": "Broker is gone.", "levelno": 40, "levelname": "ERR"})
        )
    assert [line.partition("ERR: ")[2] for line in path.read_text().splitlines()] == [
        "Broker is gone.",
        "Broker is gone. (2 more like this)",
    ]


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(path: Path) -> None:
    set_up_logging(Logging(format="json", stdout_stderr=False, file=LogFile(enable=True, path=str(path))), "router")


def test_a_line_of_json_has_a_field_for_everything(path: Path) -> None:
    to_json(path)
    log.warning("Broker %d is gone.", 3)
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert re.fullmatch(r"test_logs:\d+", line.pop("source"))
    assert line == {"level": "WARNING", "process": "router", "pid": os.getpid(), "message": "Broker 3 is gone."}


def test_client_data_cannot_forge_a_json_line(path: Path) -> None:
    to_json(path)
    nasty = 'a\n{"level":"ERR"}"\x1b[31m\0\u2028'
    log.error("Topic %s is bad.", nasty)
    (line,) = path.read_text().splitlines()
    assert line.isascii()
    assert json.loads(line)["message"] == f"Topic {nasty} is bad."


def test_json_has_the_traceback_and_the_number_of_suppressed_lines(path: Path) -> None:
    to_json(path)
    for created in (0.0, 1.0, 31.0):
        record = {"created": created, "msg": "Bug.", "levelno": 50, "levelname": "CRIT"}
        try:
            int("why")
        except ValueError:
            logging.getLogger().handle(logging.makeLogRecord(record | {"exc_info": sys.exc_info()}))
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["traceback"].endswith("'why'")
    assert "more" not in first
    assert second["more"] == 1
    assert second["time"] == "1970-01-01T00:00:31.000Z"


# --- the journal ------------------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(logs, "_JOURNALD_SOCKET", tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        yield listener


def fields(datagram: bytes) -> dict[bytes, bytes]:
    """Parse a datagram by the journal's rules."""
    found = {}
    while datagram:
        head, _, rest = datagram.partition(b"\n")
        name, is_short, value = head.partition(b"=")
        if not is_short:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        found[name], datagram = value, rest
    return found


def test_the_journal_gets_fields(journal: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Logging(journald=True, stdout_stderr=False), "router")
    log.log(NOTICE, "Topic %s.", "a\nPRIORITY=0")
    found = fields(journal.recv(10_000))
    assert found[b"MESSAGE"] == rb"Topic a\x0aPRIORITY=0."
    assert found[b"PRIORITY"] == b"5"
    assert found[b"SYSLOG_IDENTIFIER"] == b"bruce"
    assert found[b"BRUCE_PROCESS"] == b"router"
    assert found[b"CODE_FILE"].endswith(b"test_logs.py")
    assert capsys.readouterr() == ("", "")


def test_a_traceback_in_the_journal_keeps_its_lines(journal: socket.socket) -> None:
    set_up_logging(Logging(journald=True, stdout_stderr=False), "router")
    try:
        int("why")
    except ValueError:
        log.critical("Bug.", exc_info=True)
    found = fields(journal.recv(10_000))
    assert found[b"MESSAGE"].startswith(b"Bug.\nTraceback ")
    assert found[b"MESSAGE"].endswith(b"'why'")
    assert found[b"PRIORITY"] == b"2"


def test_an_absent_journal_loses_lines_until_it_returns(journal: socket.socket, tmp_path: Path) -> None:
    set_up_logging(Logging(journald=True, stdout_stderr=False), "router")
    (tmp_path / "journal").rename(tmp_path / "old")
    log.warning("lost")
    (tmp_path / "old").rename(tmp_path / "journal")
    log.error("It is back.")
    journal.settimeout(time_limit(5))
    last, report = (fields(journal.recv(10_000)) for _ in range(2))
    assert report[b"MESSAGE"].startswith(b"The journal did not accept 1 log line before this: ")
    assert report[b"PRIORITY"] == b"4"
    assert last[b"MESSAGE"] == b"It is back."
