"""Message debugging: router and dispatchers send copies of the messages of chosen topics to the status process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.message_copies import Copy, CopyQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.counters import Counter
    from bruce_mp.telemetry.message_copies import ByteSender, CopyTarget

__all__ = ["WireTap"]

_NO_INFO: Final = ""
"""The field `info` of a debug copy: empty, because the field is for the reason of a discard."""


class WireTap(CopyQueue):
    """Copies the messages of chosen topics to the status process.

    `sender` sends the copies.  `count(counter, amount)` adds to a counter of this process.
    """

    def __init__(self, slab: Slab, sender: ByteSender, count: Callable[[Counter, int], None]) -> None:
        super().__init__(sender, count)
        self._slab = slab
        self._chosen_topics = DebugTopics()
        self.is_active = False
        """True if a topic is chosen."""

    def choose(self, chosen: DebugTopics) -> None:
        self._chosen_topics = chosen
        self.is_active = chosen.has_topics

    close = CopyQueue.flush
    """Send the last copies; `process_shell.Output` requires this method."""

    def copy(self, target: CopyTarget, topic: bytes, segments: Iterable[Segment]) -> None:
        """Send copies of the messages of `segments`, for the file of `target`, if their topic is chosen.

        This process has claimed the segments, that is, it is the holder in their state words.  Skip damaged segments:
        other code of this process reports them.
        """
        if not self._chosen_topics.covers(topic):
            return
        now_ms = wall_ms()
        for segment in segments:
            with suppress(SlabError):
                self._copy(target, topic, segment, now_ms)

    def _copy(self, target: CopyTarget, topic: bytes, segment: Segment, now_ms: int) -> None:
        for message in kernels.messages(self._slab, segment, topic, max_bytes=None):
            fields = (message.timestamp_ms, _NO_INFO, topic, message.key, message.value, message.partition_key)
            self.add(Copy(target, now_ms, *fields))
