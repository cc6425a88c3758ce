"""Log handlers of a daemon process, formats of log lines, and suppression of repeated records.

    2031-05-17 09:30:00.123 UTC bruce[router 1234] WARNING: Broker 3 at kafka3:9092 closed the connection.
    {"time":"2031-05-17T09:30:00.123Z","level":"WARNING","process":"router","pid":1234,"message":"Broker 3 at ..."}

All processes append whole lines to one log file. Each process reopens the file after log rotation has moved it. If no
destination is configured, warnings and errors go to standard error. Control characters are escaped, because clients
choose topic names, and a line feed in a name could forge a line.

`RepeatFilter` passes one record of each source line in 30 s, and the next record that passes reports how many were
suppressed. If a source line logs about several subjects, it passes the subject as `extra={"about": ...}`, so that each
subject has a separate limit. A caller that limits its lines itself passes `extra={"is_limited": True}`.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import SysLogHandler, WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import TextIOWrapper

    from bruce_mp.config.sections import LogFile, Logging

__all__ = ["NOTICE", "RepeatFilter", "is_on_stderr", "plural", "printable", "remove_handlers", "set_up_logging"]

NOTICE: Final = 25
"""The level of important events in normal operation: starts, stops, changes."""

_LEVELS: Final = {
    "EMERG": 70,
    "ALERT": 60,
    "CRIT": logging.CRITICAL,
    "ERR": logging.ERROR,
    "WARNING": logging.WARNING,
    "NOTICE": NOTICE,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
}
"""The levels of the configuration, which are syslog's, and their numbers in the module `logging`."""

_REPEAT_INTERVAL_S: Final = 30.0
"""The time after a record in which records of the same source line and subject are suppressed."""
_MAX_SITES: Final = 1000
"""The maximum number of pairs of source line and subject that `RepeatFilter` remembers. It limits the memory, because
subjects may be topics, and clients may invent topics."""
_READER_PATIENCE_MS: Final = 100
"""The time that a line waits for a reader of standard output or error that was not stuck before."""
_SYSLOG_SOCKET: Final = Path("/dev/log")
_JOURNALD_SOCKET: Final = Path("/run/systemd/journal/socket")
_PRIORITIES: Final = {name: number for number, name in enumerate(_LEVELS)}
"""Syslog's numbers of the levels, which journald uses."""
_MAX_FIELD_BYTES: Final = 64 * 1024
"""The maximum size of a journal field's value, so that the datagram fits into the send buffer."""


def set_up_logging(config: Logging, process: str, *, must_open: bool = False) -> None:
    """Configure the root logger for the process with the name `process`, for example "router".

    If `must_open` is True, raise StartError if the log file cannot be opened. Otherwise the first line opens the file,
    because a process that restarts must not fail through a file that became unwritable; standard error tells of it.
    """
    for name, number in _LEVELS.items():
        logging.addLevelName(number, name)
    root = logging.getLogger()
    remove_handlers()
    for handler, formatter in _handlers(config, process, must_open=must_open):
        handler.setFormatter(formatter)
        handler.addFilter(RepeatFilter())
        root.addHandler(handler)
    root.setLevel(_LEVELS[config.level])
    sockets = (("syslog", config.syslog, _SYSLOG_SOCKET), ("journal", config.journald, _JOURNALD_SOCKET))
    for name, is_enabled, path in sockets:
        if is_enabled and not path.is_socket():
            text = f"There is no {name} at {path}: log lines for it are lost until it appears."
            root.warning(text, extra={"about": name})
            # The warning may have reached no destination; one process is enough to show it.
            if process == "supervisor" and not config.stdout_stderr:
                sys.stderr.write(f"bruce: {text}\n")


def remove_handlers() -> None:
    """Remove the handlers of the root logger and close them."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()


def is_on_stderr(config: Logging) -> bool:
    """Return True if warnings and errors go to standard error, alone or among other destinations."""
    return config.stdout_stderr or not (config.file.enable or config.syslog or config.journald)


def _handlers(config: Logging, process: str, *, must_open: bool) -> Iterator[tuple[logging.Handler, logging.Formatter]]:
    lines = _JsonFormatter(process) if config.format == "json" else _LineFormatter(process)
    if config.stdout_stderr:
        stdout = _Stream(sys.stdout, "Standard output")
        stdout.addFilter(lambda record: record.levelno < logging.WARNING)
        yield stdout, lines
    if is_on_stderr(config):
        stderr = _Stream(sys.stderr, "Standard error")
        stderr.setLevel(logging.WARNING)
        yield stderr, lines
    if config.file.enable:
        yield _log_file(config.file, must_open=must_open), lines
    if config.syslog:
        syslog_format = f"bruce[%(process)d]: {process}: %(message)s"
        yield _SysLog(str(_SYSLOG_SOCKET), SysLogHandler.LOG_DAEMON), _TextFormatter(syslog_format)
    if config.journald:
        yield _JournaldHandler(process), _TextFormatter("%(message)s")


class _LossyHandler(logging.Handler):
    """A handler that loses lines rather than wait, and writes their number after the next line."""

    _destination = ""
    _lost_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        lost_count = self._lost_count
        self._write(record)
        if lost_count and self._lost_count == lost_count:
            text = "%s did not accept %s before this: its disk was full, its reader hung, or it was absent."
            args = (self._destination, plural(lost_count, "log line"))
            self._lost_count = 0
            self._write(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, args, None))
            if self._lost_count:  # this record
                self._lost_count = lost_count

    def _write(self, record: logging.LogRecord) -> None:
        """Write a record, or count a lost line."""
        raise NotImplementedError

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Count a lost line."""
        self._lost_count += 1
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Stream(_LossyHandler, logging.StreamHandler[TextIO]):
    """A handler of standard output or error. Lines are lost while its reader hangs."""

    _is_stuck = False
    _is_cut = False  # True if a part of a line was written last

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self._destination = name

    def _write(self, record: logging.LogRecord) -> None:
        """Write a record, in pieces if it is long, because a pipe with room may have no more than for `PIPE_BUF`."""
        try:
            line = "\n" * self._is_cut + self.format(record) + "\n"
            size = select.PIPE_BUF if line.isascii() else select.PIPE_BUF // 4  # a character has 1 to 4 bytes
            for begin in range(0, len(line), size):
                if not self._has_room():
                    self._is_cut = self._is_cut or begin > 0
                    self._lost_count += 1
                    return
                self.stream.write(line[begin : begin + size])
                self.flush()
            self._is_cut = False
        except Exception:  # noqa: BLE001 - as the base class does it
            self.handleError(record)

    def _has_room(self) -> bool:
        """Return True if a piece can be written at once, or soon because the reader is only slow.

        The stream itself stays blocking, because other programs may share it.
        """
        try:
            descriptor = self.stream.fileno()
        except OSError:  # a stream in memory
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        self._is_stuck = not poller.poll(0 if self._is_stuck else _READER_PATIENCE_MS)
        return not self._is_stuck


class _LogFile(_LossyHandler, WatchedFileHandler):
    """A handler of the log file. Lines are lost while the file cannot be written, for example on a full disk."""

    def __init__(self, config: LogFile, *, is_opened_late: bool) -> None:
        self._destination = f"The log file {config.path}"
        self._mode = config.mode
        self._is_cut = False  # True if the file ends with a part of a line
        self._reported_s = -math.inf  # the time of the last report of an error
        super().__init__(config.path, encoding="utf-8", delay=is_opened_late, errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(
            self.baseFilename,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK,  # do not wait for a pipe's reader
            0o666 if self._mode is None else self._mode,
        )
        if self._mode is not None:
            with suppress(PermissionError):  # a file of another user, which this one may still write
                os.fchmod(descriptor, self._mode)  # restore the bits that the umask removed
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def _write(self, record: logging.LogRecord) -> None:
        """Write a record, into a new file if the old one was moved, and unbuffered: a buffer would cut lines."""
        try:
            self.reopenIfNeeded()
            self.stream = self.stream or self._open()
            line = ("\n" * self._is_cut + self.format(record) + "\n").encode(errors="backslashreplace")
            self._is_cut = os.write(self.stream.fileno(), line) < len(line)
            self._lost_count += self._is_cut
        except Exception:  # noqa: BLE001 - as the base class does it
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Count a lost line, and report an OSError on standard error, at most once in 30 s."""
        super().handleError(record)
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and abs(record.created - self._reported_s) >= _REPEAT_INTERVAL_S:
            self._reported_s = record.created
            text = f"bruce: The log file {self.baseFilename} cannot be written: {error.strerror}."
            remedy = "Free disk space, or make the daemon's user the owner of the file and its directory"
            with suppress(OSError):
                sys.stderr.write(f"{text} {remedy}; lines are lost until then.\n")

    def close(self) -> None:
        """Close the file; unwritten lines are lost."""
        with suppress(OSError):
            super().close()


def _log_file(config: LogFile, *, must_open: bool) -> _LogFile:
    try:
        return _LogFile(config, is_opened_late=not must_open)
    except OSError as error:
        reason = "it is a pipe that no program reads" if error.errno == errno.ENXIO else error.strerror
        raise StartError(
            f"The log file {config.path} cannot be opened: {reason}. Create its directory, and "
            "make the daemon's user the owner of both, or set another logging.file.path."
        ) from error


class _SysLog(_LossyHandler, SysLogHandler):
    """A handler that sends lines to syslog; lines are lost if it is absent or busy."""

    _destination = "Syslog"
    _write = SysLogHandler.emit
    priority_map = {name: name.lower() for name in _LEVELS}  # noqa: RUF012 - as the base class has it

    def _connect_unixsocket(self, address: str) -> None:
        # The base class would wait for a syslog that hangs, and with it the daemon's clients.
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            self.socket = socket.socket(socket.AF_UNIX, kind)
            self.socket.setblocking(False)
            if not self.socket.connect_ex(address):
                return
            self.socket.close()


class _JournaldHandler(_LossyHandler):
    """A handler that sends records as fields to systemd's journal; records are lost if the journal is absent or busy.

    https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
    """

    _destination = "The journal"

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process
        self._path = str(_JOURNALD_SOCKET)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def _write(self, record: logging.LogRecord) -> None:
        fields = self._fields(record)
        try:
            self._socket.sendto(b"".join(_journal_field(name, value) for name, value in fields.items()), self._path)
        except OSError:
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        more = getattr(record, "more", 0)  # the number of records that `RepeatFilter` suppressed
        return {
            "MESSAGE": self.format(record),
            "PRIORITY": str(_PRIORITIES.get(record.levelname, _PRIORITIES["INFO"])),
            "SYSLOG_IDENTIFIER": "bruce",
            "SYSLOG_PID": str(record.process),
            "BRUCE_PROCESS": self._process,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            **({"BRUCE_MORE": str(more)} if more else {}),
        }

    def close(self) -> None:
        self._socket.close()
        super().close()


def _journal_field(name: str, value: str) -> bytes:
    """Encode a field. A value with line feeds is sent with its length, so that it cannot forge another field."""
    data = value.encode("utf-8", "backslashreplace")[:_MAX_FIELD_BYTES]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


# --- lines ------------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Escape the characters that control a terminal or change the direction of text: `\\xNN` for each UTF-8 byte."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))


def plural(count: int, noun: str) -> str:
    """Return for example "1 message" or "2 messages"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class _TextFormatter(logging.Formatter):
    """Formatter that escapes control characters, and appends the number of records that `RepeatFilter` suppressed."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        more = getattr(record, "more", 0)
        record.message = printable(record.message)
        return super().formatMessage(record) + (f" ({more} more like this)" if more else "")


class _LineFormatter(_TextFormatter):
    """Formatter of text lines with the name of a process."""

    def __init__(self, process: str) -> None:
        stamp = "%(asctime)s.%(msecs)03d UTC"
        super().__init__(f"{stamp} bruce[{process} %(process)d] %(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S")
        self.converter = time.gmtime


class _JsonFormatter(logging.Formatter):
    """Formatter of JSON lines. The fields `more` (the number of suppressed records) and `traceback` are optional."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "process": self._process,
            "pid": record.process,
            "message": record.getMessage(),
            "source": f"{record.module}:{record.lineno}",
        }
        if more := getattr(record, "more", 0):
            fields["more"] = more
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, separators=(",", ":"))  # all in ASCII


# --- repetitions ------------------------------------------------------------------------------------------------------


class RepeatFilter(logging.Filter):
    """A filter that passes one record in 30 s for each source line and subject (`about`).

    It stores the number of records suppressed before a record that passes in the attribute `more` of this record.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[tuple[str, int, object], tuple[float, int]] = {}
        """By file, line and `about`: the time of the last record that passed, and the number of records suppressed
        since then."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "is_limited", False):
            return True
        key = (record.pathname, record.lineno, getattr(record, "about", None))
        passed_s, suppressed_count = self._sites.get(key, (-math.inf, 0))
        if 0 <= record.created - passed_s < _REPEAT_INTERVAL_S:  # negative if the clock was set back
            self._sites[key] = (passed_s, suppressed_count + 1)
            return False
        if key not in self._sites and len(self._sites) >= _MAX_SITES:
            del self._sites[next(iter(self._sites))]
        self._sites[key] = (record.created, 0)
        record.more = suppressed_count
        return True
