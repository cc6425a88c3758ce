"""Whether messages are being lost: the discards of the last minute, by reason.

Looked at once a second by the main thread, read by the threads that answer.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.telemetry.books import total
from bruce_mp.telemetry.counters import discarded

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["Losses"]

WINDOW_MS: Final = 60_000


class Losses:
    """See the module's text.  Times are ms on one clock."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._lock = Lock()
        self._seen: deque[tuple[int, dict[DiscardReason, int]]] = deque()

    def look(self, now_ms: int) -> None:
        """Note the counters as of now."""
        with self._lock:
            self._seen.append((now_ms, self._read()))
            while now_ms - self._seen[0][0] > WINDOW_MS:
                self._seen.popleft()

    def _read(self) -> dict[DiscardReason, int]:
        return {reason: total(self._slab, discarded(reason)) for reason in DiscardReason}

    def lately(self) -> dict[DiscardReason, int]:
        """Messages discarded within the last minute, by reason; reasons without any are left out."""
        now = self._read()
        with self._lock:
            before = self._seen[0][1] if self._seen else now
        return {reason: now[reason] - before[reason] for reason in DiscardReason if now[reason] > before[reason]}
