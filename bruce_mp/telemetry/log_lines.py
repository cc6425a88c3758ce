"""Formatters of log lines: plain text or JSON.

    2031-05-17 09:30:00.123 UTC bruce[router 1234] WARNING: Broker 3 at kafka3:9092 closed the connection.
    {"time":"2031-05-17T09:30:00.123Z","level":"WARNING","process":"router","pid":1234,"message":"Broker 3 at ..."}

Clients choose topic names, so control characters are escaped: otherwise a line feed in a name could forge a line.
"""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JsonFormatter", "LineFormatter", "TextFormatter", "plural", "printable"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def plural(count: int, noun: str) -> str:
    """Return for example "1 message" or "2 messages"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class TextFormatter(logging.Formatter):
    """Formatter that escapes control characters and appends `more`, the number of records that a filter suppressed."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        more = getattr(record, "more", 0)
        record.message = printable(record.message)
        return super().formatMessage(record) + (f" ({more} more like this)" if more else "")


class LineFormatter(TextFormatter):
    """Formatter of text lines with the name of a process."""

    def __init__(self, process: str) -> None:
        stamp = "%(asctime)s.%(msecs)03d UTC"
        super().__init__(f"{stamp} bruce[{process} %(process)d] %(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S")
        self.converter = time.gmtime


class JsonFormatter(logging.Formatter):
    """Formatter of JSON lines. They lack `more` (suppressed records) and `traceback` when these are empty."""

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
        return json.dumps(fields | dict(self._extras(record)), separators=(",", ":"))  # all in ASCII

    def _extras(self, record: logging.LogRecord) -> Mapping[str, Any]:
        more = getattr(record, "more", 0)
        extras: dict[str, Any] = {"more": more} if more else {}
        if record.exc_info:
            extras["traceback"] = self.formatException(record.exc_info)
        return extras
