"""Log handlers of a daemon process, and rate limiting of repeated records. `log_lines.py` formats the lines.

All processes append whole lines to one log file. Each reopens the file after log rotation has moved it. Without
a configured destination, warnings and errors go to standard error.

The log passes one record per source line in 30 s; the next one reports the number of suppressed records. A caller that
logs about several subjects from one source line separates them with `extra={"about": ...}`. A caller that limits its
lines itself passes `extra={"is_limited": True}`.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from contextlib import suppress
from logging.handlers import SysLogHandler, WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from bruce_mp.errors import StartError
from bruce_mp.telemetry.journald import JournaldHandler
from bruce_mp.telemetry.log_lines import JsonFormatter, LineFormatter, TextFormatter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import TextIOWrapper

    from bruce_mp.config.sections import LogFile, Logging

__all__ = ["NOTICE", "RepeatFilter", "apply_logging_config", "is_on_stderr", "set_up_logging"]

NOTICE: Final = 25
"""Level of important events in normal operation: starts, stops, changes."""

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
"""Syslog's levels, named as in the configuration, with their numbers on the scale of the standard library."""

_REPEAT_INTERVAL_S: Final = 30.0
"""Time for which a repeated line is only counted."""
_MAX_SITES: Final = 1000
"""Most pairs of source line and subject that the filter remembers; subjects may be topics, without a limit."""
_SYSLOG: Final = Path("/dev/log")
_JOURNALD: Final = Path("/run/systemd/journal/socket")


def set_up_logging(config: Logging, process: str) -> None:
    """Configure the root logger for `process` (for example "router").

    Raise StartError if the log file cannot be opened. Lines for syslog or journald are lost while its socket is absent.
    """
    for name, number in _LEVELS.items():
        logging.addLevelName(number, name)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in _handlers(config, process):
        handler.addFilter(RepeatFilter())
        root.addHandler(handler)
    root.setLevel(_LEVELS[config.level])
    for name, is_enabled, path in (("syslog", config.syslog, _SYSLOG), ("journal", config.journald, _JOURNALD)):
        if is_enabled and not path.is_socket():
            text = f"There is no {name} at {path}: log lines for it are lost until it appears."
            root.warning(text, extra={"about": name})
            if process == "supervisor" and not config.stdout_stderr:  # the warning may reach no other destination
                sys.stderr.write(f"bruce: {text}\n")


def apply_logging_config(before: Logging, after: Logging, process: str) -> None:
    """Apply a reloaded config if it differs. Raise StartError as `set_up_logging` does."""
    if after != before:
        set_up_logging(after, process)


def is_on_stderr(config: Logging) -> bool:
    """Return True if warnings and errors go to standard error, alone or among other destinations."""
    return config.stdout_stderr or not (config.file.enable or config.syslog or config.journald)


def _handlers(config: Logging, process: str) -> Iterator[logging.Handler]:
    formatter = JsonFormatter(process) if config.format == "json" else LineFormatter(process)
    if config.stdout_stderr:
        yield _stream_handler(sys.stdout, formatter, below=logging.WARNING)
    if is_on_stderr(config):
        yield _stream_handler(sys.stderr, formatter, lowest=logging.WARNING)
    if config.file.enable:
        yield _file_handler(config.file, formatter)
    if config.syslog:
        syslog = _SysLog(str(_SYSLOG), SysLogHandler.LOG_DAEMON)
        syslog.setFormatter(TextFormatter(f"bruce[%(process)d]: {process}: %(message)s"))
        yield syslog
    if config.journald:
        journald = JournaldHandler(process, _JOURNALD)
        journald.setFormatter(TextFormatter("%(message)s"))
        yield journald


def _stream_handler(
    stream: TextIO, formatter: logging.Formatter, *, lowest: int = 0, below: int | None = None
) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.setLevel(lowest)
    if below is not None:
        handler.addFilter(lambda record: record.levelno < below)
    return handler


class _LogFile(WatchedFileHandler):
    """A handler of the log file; lines are lost while the file cannot be written (full disk, no directory)."""

    def __init__(self, config: LogFile) -> None:
        self._mode = config.mode
        self._reported_s = -math.inf
        super().__init__(config.path, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(
            self.baseFilename,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o666 if self._mode is None else self._mode,
        )
        if self._mode is not None:
            os.fchmod(descriptor, self._mode)  # restore the bits that the umask removed
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, into a new file if the old one was moved."""
        try:
            super().emit(record)
        except OSError:  # a new file cannot be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Report an OSError on standard error, once in 30 s."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif abs(record.created - self._reported_s) >= _REPEAT_INTERVAL_S:
            self._reported_s = record.created
            text = f"bruce: The log file {self.baseFilename} cannot be written: {error.strerror}."
            with suppress(OSError):
                sys.stderr.write(f"{text} Lines are lost until it can.\n")

    def close(self) -> None:
        """Close the file; unwritten lines are lost."""
        with suppress(OSError):
            super().close()


def _file_handler(config: LogFile, formatter: logging.Formatter) -> logging.Handler:
    try:
        handler = _LogFile(config)
    except OSError as error:
        raise StartError(
            f"The log file {config.path} cannot be opened: {error.strerror}. Create its directory, and "
            "make the daemon's user the owner of both, or set another logging.file.path."
        ) from error
    handler.setFormatter(formatter)
    return handler


class _SysLog(SysLogHandler):
    priority_map = {name: name.lower() for name in _LEVELS}  # noqa: RUF012 - as the base class has it

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Drop the line; the next one may reach syslog again."""


class RepeatFilter(logging.Filter):
    """A filter that passes one record in 30 s for each source line and `about` key.

    It sets `more` of a passed record to the number of suppressed ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[tuple[str, int, object], _LogSite] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written."""
        if getattr(record, "is_limited", False):
            return True
        key = (record.pathname, record.lineno, getattr(record, "about", None))
        site = self._sites.get(key)
        if site is None:
            self._add(key, _LogSite(record.created))
            return True
        if 0 <= record.created - site.written_s < _REPEAT_INTERVAL_S:
            site.suppressed += 1
            return False
        record.more = site.suppressed
        site.written_s, site.suppressed = record.created, 0
        return True

    def _add(self, key: tuple[str, int, object], site: _LogSite) -> None:
        if len(self._sites) >= _MAX_SITES:
            del self._sites[next(iter(self._sites))]
        self._sites[key] = site


class _LogSite:
    __slots__ = ("suppressed", "written_s")

    def __init__(self, written_s: float) -> None:
        self.written_s = written_s
        self.suppressed = 0
