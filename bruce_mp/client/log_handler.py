"""Handler of Python's `logging` that sends records to Kafka without disturbing the logging program.

The handler never waits except at its end, never raises an error, and counts the records that it could not send. A
program may `fork()` after it has created the handler.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from bruce_mp.client.datagram import DatagramClient
from bruce_mp.client.errors import SendError
from bruce_mp.client.stream import EXIT_WRITE_S

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from bruce_mp.client.base import Client, Stats

__all__ = ["BruceHandler"]

TextOrBytes = str | bytes


class BruceHandler(logging.Handler):
    """Handler that sends each formatted record as a message with the record's timestamp.

    Args:
        topic: topic of the messages.
        path: the daemon's `input.unix_datagram.path`.
        key: Kafka key of the messages, or a function that returns the key of a record.
        client: a client to use instead of a `DatagramClient`; the handler closes it. Raise ValueError if its timeout is
            not 0, because the handler must not wait.
        level: as in `logging`.
    """

    def __init__(
        self,
        topic: TextOrBytes,
        path: str | os.PathLike[str] = "/run/bruce.dgram",
        *,
        key: TextOrBytes | Callable[[logging.LogRecord], TextOrBytes] = b"",
        client: Client | None = None,
        level: int | str = logging.NOTSET,
    ) -> None:
        super().__init__(level)
        if client is not None and client.timeout != 0:
            raise ValueError("A log handler must not wait: create its client with timeout=0.")
        self._client = DatagramClient(path, timeout=0, errors="count") if client is None else client
        self._topic = topic
        self._key = key

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record. Count send errors, and pass other errors to `handleError`."""
        try:
            key = self._key(record) if callable(self._key) else self._key
            self._client.send(
                self._topic, _bytes(self.format(record)), _bytes(key), timestamp_ms=int(record.created * 1000)
            )
        except SendError:
            pass  # the client has counted it
        except Exception:  # noqa: BLE001  # no error may reach the logging program
            self.handleError(record)

    def stats(self) -> Stats:
        """Return the client's counts of messages."""
        return self._client.stats()

    def close(self) -> None:
        """Write the buffered records for up to a second, and close the client.

        `stats()` counts the records that the client could not send as dropped.
        """
        self._client.timeout = EXIT_WRITE_S
        with suppress(SendError):
            self._client.close()
        super().close()


def _bytes(text: TextOrBytes) -> bytes:
    return text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
