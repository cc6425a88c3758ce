"""Publishing of an input's due runs to the router, its discard reports and the upkeep of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.frames import FrameKind, Parcel
from bruce_mp.ipc.links import LAST_WORDS_MS
from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.ipc.links import Links, LinkSender
    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.kernels import Lanes
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.runs import Segment

__all__ = ["RunPublisher"]

_REPORT_EVERY_S: Final = 0.5
_TIDY_EVERY_S: Final = 1.0
_FLUSH_MS: Final = 2000


class RunPublisher:
    """The link between an input's lanes and the router.  The loop calls `after_round` after each round."""

    def __init__(
        self, loop: Loop, lanes: Lanes, pool: ChunkPool, router: LinkSender, reporter: DiscardReporter
    ) -> None:
        self._loop = loop
        self._lanes = lanes
        self._pool = pool
        self._router = router
        self._reporter = reporter
        self._wake: Timer | None = None
        self._wake_ms = 0
        self._report: Timer | None = None

    def start_tidying(self) -> None:
        """Reclaim memory once a second, because another input may need it."""
        self._pool.tidy()
        self._loop.call_later(_TIDY_EVERY_S, self.start_tidying)

    def publish_due(self, segments: list[Segment]) -> None:
        """Send the router a frame that names runs."""
        if segments:
            self._router.send([Parcel(FrameKind.RUNS, segments=segments)])

    def flush(self, topics: Iterable[int]) -> None:
        """Make the router send the batches of some topics, after the runs of earlier frames."""
        self._router.send([Parcel(FrameKind.FLUSH, topic) for topic in topics])

    def publish_closed(self) -> None:
        """Name the closed runs to the router; the batch before must have been landed or counted."""
        self.publish_due(self._lanes.drain_closed())

    def hand_on_runs(self) -> None:
        """Close every run, and tell it of those; the lanes keep their chunks."""
        self._lanes.close_runs()
        self.publish_closed()

    def publish_all(self) -> None:
        """Close all runs and name them to the router."""
        self._lanes.close_all()
        self.publish_closed()

    def close(self, links: Links, *, has_router: bool) -> None:
        """Flush and close the links; without a router its frames are dropped, because its successor sweeps the slab."""
        self._reporter.flush()
        if not has_router:
            self._router.close()
        links.close(_FLUSH_MS if has_router else LAST_WORDS_MS)

    def after_round(self) -> None:
        """Publish due runs, and set a timer for the next."""
        self._lanes.close_due(steady_ms())
        self.publish_closed()
        self._set_alarm()
        if self._reporter.pending and self._report is None:
            self._report = self._loop.call_later(_REPORT_EVERY_S, self._send_report)

    def _send_report(self) -> None:
        self._report = None
        self._reporter.flush()

    def _set_alarm(self) -> None:
        """Set a timer for the next due run, unless an early enough one is set."""
        due = self._lanes.next_due_ms
        if due is None or (self._wake is not None and self._wake_ms <= due):
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = due
        self._wake = self._loop.call_later(max(0, due - steady_ms()) / 1000, self._woken)

    def _woken(self) -> None:
        self._wake = None
