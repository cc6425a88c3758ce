"""A warning about an outage, through `logging`: without it, a client that keeps trying to connect waits in silence.

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
"""Length of an outage before the warning."""


class OutageWarning:
    """Warns once in an outage, at the first failed try after `WARN_AFTER_S`."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        """Monotonic time of the outage's first failed try; None without an outage."""
        self._has_warned = False

    def on_connected(self) -> None:
        """End the outage."""
        self._since_s = None
        self._has_warned = False

    def on_failure(self, error: SendError) -> None:
        """Handle a failed try: begin an outage, or warn of the present one if it has lasted long enough."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if self._has_warned or now_s - self._since_s < WARN_AFTER_S:
            return
        self._has_warned = True
        text = f"No connection for {now_s - self._since_s:.0f} s; the client goes on trying. {error}"
        # In a separate thread, because a log handler may send through this client while the caller holds the client's
        # lock.
        warner = threading.Thread(target=log.warning, args=("%s", text), name="bruce-client-warning", daemon=True)
        with suppress(RuntimeError):  # a new thread cannot start while the interpreter ends
            warner.start()
