"""Log handler for systemd's journal: structured fields over the journal's native socket.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["JournaldHandler"]

_MAX_FIELD_BYTES: Final = 64 * 1024
"""Maximum bytes of a field's value; a longer one is truncated, so that the datagram fits into the send buffer."""

_PRIORITIES: Final[Mapping[str, int]] = {
    name: number for number, name in enumerate(("EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"))
}


class JournaldHandler(logging.Handler):
    """A handler that sends the log records of one process to the journal.

    A record is lost if the journal is absent or busy.
    """

    def __init__(self, process: str, path: Path) -> None:
        super().__init__()
        self._process = process
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        fields = self._fields(record)
        try:
            self._socket.sendto(b"".join(_field(name, value) for name, value in fields.items()), self._path)
        except OSError:
            return

    def _fields(self, record: logging.LogRecord) -> Mapping[str, str]:
        more = getattr(record, "more", 0)  # records that `RepeatFilter` suppressed
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


def _field(name: str, value: str) -> bytes:
    """Encode a field. A value with line feeds is sent with its length, so that it cannot forge another field."""
    data = value.encode("utf-8", "backslashreplace")[:_MAX_FIELD_BYTES]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
