"""Collect the discards of a process: sum them for the discard report, copy them for the discard file, log them.

A `DiscardReporter` sums the discards of each kind (reason, topic and so on), and sends the sums to the status process
twice a second (see `reports.py`). So a flood of bad messages costs only additions and a few frames. If the link to the
status process is full, the sums wait for the next flush. If there are more than MAX_ENTRIES kinds, the discards of
further kinds are summed under the empty topic name.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.discards.bounded_samples import MAX_ENTRIES, CountedTimeRange, RecentSamples, add_sender, bounded_entry
from bruce_mp.discards.events import DiscardEvent, DuplicateEvent, SenderEvent
from bruce_mp.discards.reasons import EXPLANATIONS, PARSED, SAMPLED, discard_sentence
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.discard_line import info_of
from bruce_mp.slab.layout import TOPIC_NAME_MAX
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.event_output import encode_events
from bruce_mp.telemetry.message_copies import Copy, CopyTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.discards.events import DiscardReportEvent
    from bruce_mp.protocol.client.messages import Message
    from bruce_mp.telemetry.message_copies import ByteSender, CopyQueue

__all__ = ["DiscardCopies", "DiscardReporter", "PeerCredentials", "command_of"]

log = logging.getLogger(__name__)
LOG_INTERVAL_S: Final = 30.0
"""Minimum time between two log lines about the same reason and topic."""
_REMOVAL_S: Final = 3600.0
"""Time without discards after which a `_LoggedKind` loses its entry in a full table."""

_DiscardKind = tuple[DiscardReason, bytes, int | None, int | None, bool]
"""Key of a sum: reason, topic, unsupported version or None, unsupported API key or None, True for a TCP connection."""


class PeerCredentials(NamedTuple):
    """The process and the user of a sender on a UNIX socket, as Linux reports them."""

    pid: int
    uid: int


class DiscardCopies(NamedTuple):
    """The queue for copies of discarded messages, and the maximum size of a key and of a value; None = no maximum."""

    queue: CopyQueue
    max_bytes: int | None


_LoggedKind = tuple[DiscardReason, bytes | None]
"""Reason and topic of a log line. The topic is b"" for messages without one, None for all topics without an entry."""


class _LogCounts:
    """The numbers of logged and unlogged discards of a `_LoggedKind`; the next log line is due at `due_s`."""

    __slots__ = ("due_s", "logged", "unlogged")

    def __init__(self) -> None:
        self.logged = self.unlogged = 0
        self.due_s = -math.inf


class DiscardReporter:
    """Collects the discards of one process.

    Reports show the first `prefix_size` bytes of a bad message. If `is_logged`, discards are also logged. `copies` is
    None if the config sets neither a discard file nor a dead letter topic.
    """

    def __init__(
        self,
        sender: ByteSender,
        prefix_size: int,
        *,
        is_logged: bool = False,
        copies: DiscardCopies | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender = sender
        self._clock = clock
        self.apply_settings(prefix_size, is_logged=is_logged, copies=copies)
        self._discards: dict[_DiscardKind, CountedTimeRange] = {}
        self._samples: dict[tuple[DiscardReason, bool], RecentSamples] = {}
        """The samples by reason and `is_tcp`."""
        self._duplicates: dict[bytes, CountedTimeRange] = {}
        self._senders: dict[tuple[DiscardReason, int, int], SenderEvent] = {}
        self._log_counts: dict[_LoggedKind, _LogCounts] = {}
        self._has_unlogged = False

    def apply_settings(self, prefix_size: int, *, is_logged: bool, copies: DiscardCopies | None) -> None:
        """Apply changed settings; the docstring of the class explains the arguments."""
        self._is_logged = is_logged
        self._prefix_size = prefix_size
        self._copies = copies
        self.keeps_copies = copies is not None
        """True if callers must pass discarded messages to `copy`."""
        self.copy_size = None if copies is None else copies.max_bytes
        """Maximum number of bytes of a key, and of a value, in a copy; None = no maximum."""
        are_copies_whole = copies is not None and copies.max_bytes is None
        self.sample_size = None if are_copies_whole else max(self.copy_size or 0, prefix_size)
        """Maximum number of bytes of a sample that `record` uses; None = no maximum."""

    @property
    def has_pending(self) -> bool:
        """Return True if there are sums or copies to send, or discards to log."""
        has_copies = self._copies is not None and self._copies.queue.has_pending
        return bool(self._discards or self._duplicates or self._has_unlogged or has_copies)

    def record(
        self,
        reason: DiscardReason,
        topic: bytes = b"",
        timestamp: int = 0,
        sample: bytes = b"",
        *,
        version: int | None = None,
        api_key: int | None = None,
        count: int = 1,
        max_timestamp: int | None = None,
        is_tcp: bool = False,
        peer: PeerCredentials | None = None,
    ) -> None:
        """Record `count` discarded messages.

        `timestamp` is the smallest client timestamp in ms, `max_timestamp` the largest (None = the same). `sample` has
        the first bytes of unparsed data, at most `sample_size`. `version` or `api_key` is set if the daemon does not
        support its value. `is_tcp` is True for an unclean disconnect of a TCP connection. `peer` is None if the sender
        is unknown.
        """
        if peer is not None:
            self._record_sender(reason, peer, count, sample)
        kind = (reason, topic[:TOPIC_NAME_MAX], version, api_key, is_tcp)
        counted = bounded_entry(self._discards, kind, (reason, b"", None, None, is_tcp), CountedTimeRange)
        counted.add(count, timestamp, timestamp if max_timestamp is None else max_timestamp)
        if self._is_logged:
            self._count_for_log(reason, topic[:TOPIC_NAME_MAX], count)
        if reason in SAMPLED and reason not in PARSED:
            self._add_sample(reason, sample, is_tcp=is_tcp)
        if self._copies is not None and reason not in PARSED:
            info = info_of(reason, number=version or api_key or 0, is_tcp=is_tcp)
            now_ms = wall_ms()
            sample = sample[: self._copies.max_bytes]
            # Unparsed data has no client timestamp, so both times in the copy are the present time.
            copy = Copy(CopyTarget.DISCARDS, now_ms, now_ms, info, topic=b"", key=b"", value=sample)
            self._copies.queue.prepare(copy)

    def _record_sender(self, reason: DiscardReason, peer: PeerCredentials, count: int, sample: bytes) -> None:
        earlier = self._senders.get((reason, *peer))
        command = command_of(peer.pid) if earlier is None else earlier.command
        add_sender(self._senders, SenderEvent(reason, *peer, command, count, sample[: self._prefix_size]))

    def _add_sample(self, reason: DiscardReason, sample: bytes, *, is_tcp: bool = False) -> None:
        self._samples.setdefault((reason, is_tcp), RecentSamples()).add(sample[: self._prefix_size])

    def record_oversized(self, topic: bytes, values: Iterable[bytes]) -> None:
        """Record samples of messages with too long values; `values` are in order of arrival."""
        for value in values:
            self._add_sample(DiscardReason.LONG_MSG, topic + b" " + value)

    def copy(self, reason: DiscardReason | None, messages: Iterable[Message]) -> None:
        """Stage copies of discarded messages; `reason` is None for copies of possible duplicates.

        The next `queue_copies` or `flush` queues the copies. The caller truncates keys and values to `copy_size` bytes.
        """
        if self._copies is None:
            return
        now_ms, info = wall_ms(), "" if reason is None else info_of(reason)
        for each in messages:
            fields = (each.timestamp_ms, info, each.topic, each.key, each.value, each.partition_key, each.headers)
            self._copies.queue.prepare(Copy(CopyTarget.DISCARDS, now_ms, *fields, int(each.empty)))

    def copy_increments(self) -> dict[int, int]:
        """Return the counter increment for the prepared copies, for the transaction that discards their messages."""
        copy_count = self._copies.queue.prepared_count if self._copies is not None else 0
        return {Counter.DiscardCopyQueued: copy_count} if copy_count else {}

    def queue_copies(self) -> None:
        """Queue the prepared copies, after the commit of the transaction that discards their messages."""
        if self._copies is not None:
            self._copies.queue.queue_prepared()

    def record_duplicates(self, topic: bytes, count: int, min_timestamp: int, max_timestamp: int) -> None:
        """Record messages that are sent again although the broker may have stored them; client timestamps are in ms."""
        bounded_entry(self._duplicates, topic[:TOPIC_NAME_MAX], b"", CountedTimeRange).add(
            count, min_timestamp, max_timestamp
        )

    def flush(self) -> None:
        """Log and send the sums. Processes call this twice a second; it costs nothing without events."""
        self._log_discards(self._clock())
        has_sums = bool(self._discards or self._duplicates)
        if has_sums and self._sender.send_bytes(encode_events(self._events())):
            self._discards.clear()
            self._samples.clear()
            self._duplicates.clear()
            self._senders.clear()
        if self._copies is not None:
            self._copies.queue.flush()

    def close(self) -> None:
        self._log_discards(math.inf)  # all log lines are due then
        self.flush()

    def _count_for_log(self, reason: DiscardReason, topic: bytes, count: int) -> None:
        counts = self._log_counts.get((reason, topic))
        if counts is None:
            is_full = len(self._log_counts) >= MAX_ENTRIES
            kind = (reason, None if topic and is_full else topic)  # kinds without a topic are few, so they have room
            counts = self._log_counts.setdefault(kind, _LogCounts())
        counts.unlogged += count
        self._has_unlogged = True

    def _log_discards(self, now_s: float) -> None:
        """Log the discards of each reason and topic: the first at once, later ones as a sum every `LOG_INTERVAL_S`."""
        if not self._has_unlogged:
            return
        for (reason, topic), counts in self._log_counts.items():
            if counts.unlogged and now_s >= counts.due_s:
                sentence = discard_sentence(counts.unlogged, _topic_phrase(topic))
                counts.logged += counts.unlogged
                total = f" {counts.logged} since the first one." if counts.logged > counts.unlogged else ""
                # `is_limited` exempts the line from the log's general limit: LOG_INTERVAL_S limits these lines.
                log.error(
                    "%s: %s (%s).%s", sentence, reason.name, EXPLANATIONS[reason], total, extra={"is_limited": True}
                )
                counts.unlogged, counts.due_s = 0, now_s + LOG_INTERVAL_S
        self._has_unlogged = any(counts.unlogged for counts in self._log_counts.values())
        if len(self._log_counts) >= MAX_ENTRIES:
            self._log_counts = {
                kind: counts
                for kind, counts in self._log_counts.items()
                if counts.unlogged or now_s < counts.due_s + _REMOVAL_S
            }

    def _events(self) -> Iterator[DiscardReportEvent]:
        """Yield the sums as events. The samples of a reason and `is_tcp` are all in the earliest of their events."""
        samples = dict(self._samples)
        for (reason, topic, version, api_key, is_tcp), counted in self._discards.items():
            first_samples = samples.pop((reason, is_tcp), RecentSamples()).oldest_first
            times = (counted.min_timestamp, counted.max_timestamp)
            yield DiscardEvent(reason, topic, counted.count, *times, first_samples, version, api_key, is_tcp)
        for topic, counted in self._duplicates.items():
            yield DuplicateEvent(topic, counted.count, counted.min_timestamp, counted.max_timestamp)
        yield from self._senders.values()


def _topic_phrase(topic: bytes | None) -> str:
    """Return a phrase for the topic of a `_LoggedKind`, empty if the messages have no topic."""
    if topic is None:
        return "other topics"
    return f"topic {topic.decode('utf-8', 'backslashreplace')}" if topic else ""


def command_of(pid: int) -> str:
    """Return the name of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "backslashreplace").strip()
    except OSError:
        return ""
