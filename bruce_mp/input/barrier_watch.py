"""Polling for the outcomes that barriers wait for.

The interval is 1 ms while outcomes arrive, and doubles up to 20 ms while none does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.input.barriers import Barriers
    from bruce_mp.input.outcomes import Outcomes
    from bruce_mp.input.run_publisher import RunPublisher
    from bruce_mp.ipc.loop import Loop, Timer

__all__ = ["BarrierWatch"]

_MIN_INTERVAL_MS: Final = 1
_MAX_INTERVAL_MS: Final = 20
_INTERVAL_FACTOR: Final = 4
"""Minimum ratio of the interval to the duration of a poll."""
_FLUSH_RETRY_MS: Final = 100


class BarrierWatch:
    """The timer that polls for outcomes while barriers wait, and calls `after_poll` after each poll.

    `wake_journal` asks for a durable copy of all runs now, if the configuration says so.
    """

    def __init__(
        self,
        loop: Loop,
        barriers: Barriers,
        outcomes: Outcomes,
        publisher: RunPublisher,
        *,
        after_poll: Callable[[], None],
        wake_journal: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._barriers = barriers
        self._outcomes = outcomes
        self._publisher = publisher
        self._after_poll = after_poll
        self._wake_journal = wake_journal
        self._timer: Timer | None = None
        self._interval_ms = _MIN_INTERVAL_MS
        self._flush_retry_ms = 0

    def start(self) -> None:
        """Publish and flush all messages for a new barrier, and poll at the shortest interval again."""
        self._barriers.has_new = False
        self._publisher.publish_open_runs()
        self._flush()
        self._request_journal()
        self._interval_ms = _MIN_INTERVAL_MS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_MIN_INTERVAL_MS / 1000, self._poll)

    def _flush(self) -> None:
        """Ask the router to flush the topics of unsettled messages; repeated each 100 ms, as a frame may be lost."""
        self._flush_retry_ms = steady_ms() + _FLUSH_RETRY_MS
        if self._barriers.wants_delivery:
            self._publisher.flush(self._outcomes.topics())

    def _request_journal(self) -> None:
        if self._barriers.on_handed_over():
            self._wake_journal()

    def _poll(self) -> None:
        """Poll once, and schedule the next poll."""
        began = time.monotonic()
        has_progress = self._barriers.answer_finished(steady_ms())
        self._after_poll()
        self._timer = None
        if not len(self._barriers):
            return
        if steady_ms() >= self._flush_retry_ms:
            if self._barriers.awaits_handover:  # lanes may have open runs with messages from spill files
                self._publisher.publish_open_runs()
            self._flush()
            self._request_journal()
        took_ms = (time.monotonic() - began) * 1000
        self._interval_ms = _MIN_INTERVAL_MS if has_progress else min(2 * self._interval_ms, _MAX_INTERVAL_MS)
        after_ms = max(self._interval_ms, _INTERVAL_FACTOR * took_ms)
        due_ms = self._barriers.due_ms
        if due_ms is not None:
            after_ms = min(after_ms, max(1, due_ms - steady_ms()))
        self._timer = self._loop.call_later(after_ms / 1000, self._poll)
