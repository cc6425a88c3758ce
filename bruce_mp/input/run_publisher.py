"""The frames with which an input names its runs to the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.ipc.frames import FrameKind, Parcel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.ipc.links import LinkSender
    from bruce_mp.kernels import Lanes
    from bruce_mp.slab.runs import Segment

__all__ = ["RunPublisher"]


class RunPublisher:
    """The link between an input's lanes and the router."""

    def __init__(self, lanes: Lanes, router: LinkSender) -> None:
        self._lanes = lanes
        self._router = router

    def publish_due(self, segments: list[Segment]) -> None:
        """Send the router a frame that names runs."""
        if segments:
            self._router.send([Parcel(FrameKind.RUNS, segments=segments)])

    def flush(self, topics: Iterable[int]) -> None:
        """Make the router send the batches of some topics, after the runs of earlier frames."""
        self._router.send([Parcel(FrameKind.FLUSH, topic) for topic in topics])

    def publish_closed(self) -> None:
        """Name the closed runs to the router; the batch before must have been landed or counted."""
        if closed := self._lanes.drain_closed():
            self.publish_due(closed)

    def publish_ready(self, now_ms: int) -> None:
        """Name the closed runs to the router if their tick has come; see `publish_closed`."""
        if ready := self._lanes.drain_ready(now_ms):
            self.publish_due(ready)

    def hand_on_runs(self) -> None:
        """Close every run, and tell it of those; the lanes keep their chunks."""
        self._lanes.close_runs()
        self.publish_closed()

    def publish_all(self) -> None:
        """Close all runs and name them to the router."""
        self._lanes.close_all()
        self.publish_closed()
