"""The publication of runs: the frames that an input sends to the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.ipc.links import LinkSender
    from bruce_mp.kernels import Lanes
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["RunPublisher"]


class RunPublisher:
    """Sends the closed runs of an input's lanes to the router, in RUNS frames, and counts them in the input's row."""

    def __init__(self, lanes: Lanes, router: LinkSender, row: ProcessRow) -> None:
        self._lanes = lanes
        self._router = router
        self._row = row

    def publish(self, segments: list[Segment]) -> None:
        """Send the router a RUNS frame with these segments; nothing for an empty list."""
        if segments:
            self._router.send([Parcel(ParcelKind.RUNS, segments=segments)])
            self._row.add(Counter.InputRunsPublished, len(segments))

    def flush(self, topics: Iterable[int]) -> None:
        """Ask the router to flush the batches of some topics, with the runs of all earlier frames."""
        self._router.send([Parcel(ParcelKind.FLUSH, topic) for topic in topics])

    def publish_closed(self) -> None:
        """Publish all closed runs.

        The row must have counted their records, else the books could show more delivered than received messages.
        """
        self.publish(self._lanes.drain_closed())

    def publish_ready(self, now_ms: int) -> None:
        """Publish the closed runs if the time for it has come (`Lanes.drain_ready`); see `publish_closed`."""
        self.publish(self._lanes.drain_ready(now_ms))

    def publish_open_runs(self) -> None:
        """Close and publish every run; the lanes keep their chunks."""
        self._lanes.close_runs()
        self.publish_closed()

    def publish_all(self) -> None:
        """Close and publish every run; the lanes release their chunks."""
        self._lanes.close_all()
        self.publish_closed()
