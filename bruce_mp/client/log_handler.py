"""A handler for Python's `logging` that sends records to Kafka, and never gets in the way of the program that logs.

It does not wait, it does not raise, and it counts what it could not send.  Like its client it may cross a `fork()`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from bruce_mp.client.datagram import DatagramClient
from bruce_mp.client.failures import SendError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from bruce_mp.client.base import Client, Stats

__all__ = ["BruceHandler"]

Text = str | bytes


class BruceHandler(logging.Handler):
    """Sends each record, as the formatter renders it, as a message with the record's time.

    Args:
        topic: topic of the messages.
        path: the daemon's `input.unix_datagram.path`.
        key: Kafka key of the messages, or what makes one of a record.
        client: another client than one of datagrams. It must not wait (`timeout=0`); the handler closes it.
        level: as in `logging`.

    Raises ValueError for a client that waits.
    """

    def __init__(
        self,
        topic: Text,
        path: str | os.PathLike[str] = "/run/bruce.dgram",
        *,
        key: Text | Callable[[logging.LogRecord], Text] = b"",
        client: Client | None = None,
        level: int | str = logging.NOTSET,
    ) -> None:
        super().__init__(level)
        if client is not None and client.timeout != 0:
            raise ValueError("A log handler must not wait: make its client with timeout=0.")
        self._client = DatagramClient(path, timeout=0, errors="count") if client is None else client
        self._topic = topic
        self._key = key

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; what goes wrong is counted, or handled as `logging` handles errors of handlers."""
        try:
            key = self._key(record) if callable(self._key) else self._key
            self._client.send(
                self._topic, _bytes(self.format(record)), _bytes(key), timestamp_ms=int(record.created * 1000)
            )
        except SendError:
            pass  # the client has counted it
        except Exception:  # noqa: BLE001  # whatever it is, it is not for the program that logs
            self.handleError(record)

    def stats(self) -> Stats:
        """What became of the records."""
        return self._client.stats()

    def close(self) -> None:
        """Close the client; what it could not send it has counted."""
        with suppress(SendError):
            self._client.close()
        super().close()


def _bytes(text: Text) -> bytes:
    return text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
