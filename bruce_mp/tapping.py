"""Message debugging, in the processes that have the messages: copies of those of chosen topics.

Nothing is chosen as a rule, and then it costs a look at one flag for each segment.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipes.control import DebugTopics
from bruce_mp.pipes.links import COPIES
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.copies import Copies, Copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.pipes.links import Links
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.copies import Target

__all__ = ["Tap", "tap_for"]


class Tap:
    """Copies messages on their way."""

    def __init__(self, slab: Slab, copies: Copies) -> None:
        self._slab = slab
        self._copies = copies
        self._chosen = DebugTopics()
        self.is_open = False
        """Whether any topic is chosen."""

    def choose(self, chosen: DebugTopics) -> None:
        """From now on copy the messages of these topics."""
        self._chosen = chosen
        self.is_open = chosen.any

    @property
    def pending(self) -> bool:
        """Whether there is anything to flush."""
        return self._copies.pending

    def flush(self) -> None:
        """Send what was copied."""
        self._copies.flush()

    def copy(self, target: Target, topic: bytes, segments: Iterable[Segment]) -> None:
        """Copy segments that are ours, if their topic is chosen, but none that is damaged: who works with it tells."""
        if not self._chosen.covers(topic):
            return
        now_ms = wall_ms()
        for segment in segments:
            with suppress(SlabError):
                self._copy(target, topic, segment, now_ms)

    def _copy(self, target: Target, topic: bytes, segment: Segment, now_ms: int) -> None:
        for each in kernels.messages(self._slab, segment, topic, None):
            fields = (each.timestamp_ms, "", topic, each.key, each.value, each.partition_key)
            self._copies.add(Copy(target, now_ms, *fields))


def tap_for(slab: Slab, links: Links, row: Row) -> Tap:
    """The tap of a process with these links and this row."""
    return Tap(slab, Copies(links.sender(COPIES), row.add))
