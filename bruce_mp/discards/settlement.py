"""Discards and possible duplicates of messages in the slab.

To discard messages, a process settles them, reports them to the status process, and queues copies of them if the config
sets a discard file or a dead letter topic. Router, dispatchers and stream workers do so with `Discards`. The datagram
input discards messages before they are in a chunk, and uses only `ProcessReporter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.discards.bounded_samples import MAX_SAMPLES
from bruce_mp.discards.reporter import DiscardCopies, DiscardReporter
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.ipc.links import COPIES, REPORTS
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.message_copies import CopyQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.links import Links
    from bruce_mp.protocol.client.messages import Message
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Discards", "ProcessReporter"]


class ProcessReporter(DiscardReporter):
    """The discard reporter of a process, with the settings of the config."""

    def __init__(self, config: Config, links: Links, row: ProcessRow) -> None:
        super().__init__(links.sender(REPORTS), config.http.bad_msg_prefix_size)
        self._links = links
        self._row = row
        self._copy_queue: CopyQueue | None = None
        self.apply_config(config)

    def apply_config(self, config: Config) -> None:
        copies = None
        if config.discard_log.enable or config.discards.topic:
            self._copy_queue = self._copy_queue or CopyQueue(self._links.sender(COPIES), self._row.add)
            # A dead letter contains the whole message. If there is a discard file as well, its writer cuts the lines.
            max_bytes = None if config.discards.topic else config.discard_log.max_msg_prefix_size
            copies = DiscardCopies(self._copy_queue, max_bytes)
        elif self._copy_queue is not None:
            self._copy_queue.flush()
        self.apply_settings(config.http.bad_msg_prefix_size, is_logged=config.logging.log_discards, copies=copies)


class Discards:
    """Discards messages in the slab for the process that owns `row`, and records its possible duplicates."""

    def __init__(self, slab: Slab, row: ProcessRow, reporter: DiscardReporter) -> None:
        self._slab = slab
        self._row = row
        self._reporter = reporter

    def settle(
        self, segments: Iterable[Segment], reason: DiscardReason, topic: bytes, counter: Counter | None = None
    ) -> None:
        """Discard segments that this process owns, and raise `counter` by the number of their messages.

        One transaction settles up to MAX_SETTLED_SEGMENTS segments. A record batch never has more segments, so one
        transaction discards it.
        """
        segments = list(segments)
        for start in range(0, len(segments), MAX_SETTLED_SEGMENTS):
            part = segments[start : start + MAX_SETTLED_SEGMENTS]
            for segment in part:
                self._report(segment, reason, topic)
            message_count = sum(segment.records for segment in part)
            increments = {discarded(reason): message_count} | ({} if counter is None else {counter: message_count})
            self._row.settle(part, RunState.DISCARDED, reason, increments | self._reporter.copy_increments())
            self._reporter.queue_copies()

    def _report(self, segment: Segment, reason: DiscardReason, topic: bytes) -> None:
        times = self._time_range(segment)
        self._reporter.record(reason, topic, times.earliest, count=segment.records, max_timestamp=times.latest)
        if reason is DiscardReason.LONG_MSG:
            messages = kernels.messages(self._slab, segment, topic, self._reporter.sample_size)
            self._reporter.record_oversized(topic, [message.value for message in messages[-MAX_SAMPLES:]])
        if self._reporter.keeps_copies:
            self._reporter.copy(reason, self._messages(segment, topic))

    def _time_range(self, segment: Segment) -> kernels.TimeRange:
        """Return the range of the messages' client timestamps, or zeros for a damaged segment."""
        try:
            return kernels.time_range(self._slab, segment)
        except SlabError:
            return kernels.TimeRange(0, 0)

    def _messages(self, segment: Segment, topic: bytes) -> list[Message]:
        try:
            return kernels.messages(self._slab, segment, topic, self._reporter.copy_size)
        except SlabError:
            return []

    def record_duplicates(self, segments: Iterable[Segment], topic: bytes) -> None:
        """Record possible duplicates: messages that are sent again although the broker may have stored them."""
        for segment in segments:
            times = self._time_range(segment)
            self._row.add(Counter.PossibleDuplicateMsg, segment.records)
            self._reporter.record_duplicates(topic, segment.records, times.earliest, times.latest)
            if self._reporter.keeps_copies:
                self._reporter.copy(None, self._messages(segment, topic))
