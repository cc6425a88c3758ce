"""Message debugging in router and dispatchers: copies of the messages of chosen topics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.ipc.links import COPIES
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.message_copies import Copy, CopyQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.ipc.links import Links
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.message_copies import CopyTarget

__all__ = ["WireTap", "create_tap"]

_NO_INFO: Final = ""
"""The `info` of a debug copy, which has no discard reason."""


class WireTap:
    """Copies the messages of chosen topics to the status process."""

    def __init__(self, slab: Slab, copies: CopyQueue) -> None:
        self._slab = slab
        self._copies = copies
        self._chosen = DebugTopics()
        self.is_active = False
        """True if a topic is chosen."""

    def choose(self, chosen: DebugTopics) -> None:
        """Replace the chosen topics."""
        self._chosen = chosen
        self.is_active = chosen.has_topics

    @property
    def has_pending(self) -> bool:
        """True if copies wait for `flush`."""
        return self._copies.has_pending

    def flush(self) -> None:
        """Send the waiting copies."""
        self._copies.flush()

    def close(self) -> None:
        """Send the last copies; `process_shell.Output` requires this method."""
        self.flush()

    def copy(self, target: CopyTarget, topic: bytes, segments: Iterable[Segment]) -> None:
        """Copy claimed segments for the file `target` if their topic is chosen.

        Skip damaged ones, which their owner reports.
        """
        if not self._chosen.covers(topic):
            return
        now_ms = wall_ms()
        for segment in segments:
            with suppress(SlabError):
                self._copy(target, topic, segment, now_ms)

    def _copy(self, target: CopyTarget, topic: bytes, segment: Segment, now_ms: int) -> None:
        for message in kernels.messages(self._slab, segment, topic, max_bytes=None):
            fields = (message.timestamp_ms, _NO_INFO, topic, message.key, message.value, message.partition_key)
            self._copies.add(Copy(target, now_ms, *fields))


def create_tap(slab: Slab, links: Links, row: ProcessRow) -> WireTap:
    """Create the tap of a process."""
    return WireTap(slab, CopyQueue(links.sender(COPIES), row.add))
