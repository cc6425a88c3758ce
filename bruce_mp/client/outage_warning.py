"""A log line about an outage: without it, a program would not notice that its client waits for a connection.

Separate because the warning needs a thread and a logger, and the link in `reconnecting_link` needs neither.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bruce_mp.client.errors import SendError

__all__ = ["OutageWarning"]

log = logging.getLogger("bruce_mp.client")

WARN_AFTER_S: Final = 5.0
"""Shortest time from the first failed try to connect to the warning."""


class OutageWarning:
    """Warns once in each outage, at the first failed try to connect that is `WARN_AFTER_S` after the outage began."""

    def __init__(self) -> None:
        self._outage_start_s: float | None = None
        """Monotonic time of the outage's first failed try; None if there is no outage."""
        self._has_warned = False

    def on_connected(self) -> None:
        """End the outage."""
        self._outage_start_s = None
        self._has_warned = False

    def on_failure(self, error: SendError) -> None:
        """Begin an outage, or warn of the present one if it has lasted long enough."""
        now_s = time.monotonic()
        if self._outage_start_s is None:
            self._outage_start_s = now_s
        if self._has_warned or now_s - self._outage_start_s < WARN_AFTER_S:
            return
        self._has_warned = True
        text = f"No connection for {now_s - self._outage_start_s:.0f} s; the client goes on trying. {error}"
        # In a separate thread: the caller holds the client's lock, and a log handler may send through the same client.
        warner = threading.Thread(target=log.warning, args=("%s", text), name="bruce-client-warning", daemon=True)
        with suppress(RuntimeError):  # a new thread cannot start while the interpreter ends
            warner.start()
