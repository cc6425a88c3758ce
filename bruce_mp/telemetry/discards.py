"""Event, where they happen: summed up for the report, copied for the discard file, told to the log.

`DiscardReporter` lives in a process of the message path.  It adds up in memory and sends the sums a few times a second,
so that a flood of bad messages costs a flood of additions and a handful of frames.  It never blocks and is bounded:
what the link refuses stays added up for the next flush, and beyond MAX_TOPICS kinds the rest goes under no topic.  The
other end is `reports`.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import DiscardReason
from bruce_mp.slab.layout import TOPIC_NAME_MAX
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.copies import Copy, Target
from bruce_mp.telemetry.discard_line import info_of
from bruce_mp.telemetry.events import CulpritEvent, DiscardEvent, DuplicateEvent, encode_events
from bruce_mp.telemetry.reasons import ABOUT_UNDERSTOOD, EXPLAINED, SAMPLED, were_discarded
from bruce_mp.telemetry.spans import MAX_TOPICS, RECENT, Recent, Span, entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.protocol.client_wire import Message
    from bruce_mp.telemetry.copies import ByteSender, Copies
    from bruce_mp.telemetry.events import Event

__all__ = ["DiscardReporter", "FileCopies", "Peer", "command_of"]

_LOG = logging.getLogger(__name__)

_Kind = tuple[DiscardReason, bytes, int | None, int | None, bool]
"""Reason, topic, version, API key, whether over TCP: what one sum is kept for."""


class Peer(NamedTuple):
    """Who is at the other end of a UNIX connection: process and user, as the kernel says."""

    pid: int
    uid: int


class FileCopies(NamedTuple):
    """Where copies of discarded messages go; of key and value `longest` bytes each, None = all."""

    copies: Copies
    longest: int | None


class DiscardReporter:
    """Notes discards; one in each process that discards.

    `prefix_size` is how many bytes of a bad message a report shows; `is_logged` says whether the log hears of discards;
    `file` is None if there is no discard file.
    """

    def __init__(
        self, sender: ByteSender, prefix_size: int, *, is_logged: bool = False, file: FileCopies | None = None
    ) -> None:
        self._sender = sender
        self.change(prefix_size, is_logged=is_logged, file=file)
        self._discards: dict[_Kind, Span] = {}
        self._samples: dict[tuple[DiscardReason, bool], Recent] = {}
        self._duplicates: dict[bytes, Span] = {}
        self._culprits: dict[tuple[DiscardReason, Peer], CulpritEvent] = {}
        self._unlogged: Tally[tuple[DiscardReason, bytes]] = Tally()

    def change(self, prefix_size: int, *, is_logged: bool, file: FileCopies | None) -> None:
        """From now on report in this way: see the arguments of the class."""
        self._is_logged = is_logged
        self._prefix_size = prefix_size
        self._file = file

    @property
    def pending(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._discards or self._duplicates or (self._file is not None and self._file.copies.pending))

    @property
    def sample_size(self) -> int | None:
        """How many bytes of a bad message `note` has a use for; None = all."""
        if self._file is None:
            return self._prefix_size
        return None if self._file.longest is None else max(self._file.longest, self._prefix_size)

    @property
    def keeps_copies(self) -> bool:
        """Whether `copy` and `copy_duplicates` should be called: there is a discard file."""
        return self._file is not None

    @property
    def copy_size(self) -> int | None:
        """How many bytes of a key and of a value a copy has; None = all."""
        return None if self._file is None else self._file.longest

    def note(
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
        peer: Peer | None = None,
    ) -> None:
        """Note `count` discarded messages.

        `timestamp` is the client's, in ms; of several messages the smallest, with `max_timestamp` the largest.
        `sample` is the beginning of what was received and not understood, `sample_size` bytes of it.  `is_tcp`: an
        unclean disconnect was one of TCP.  `peer` sent it, if that is known.
        """
        if peer is not None:
            self._accuse(reason, peer, count, sample)
        kind = (reason, topic[:TOPIC_NAME_MAX], version, api_key, is_tcp)
        total = entry(self._discards, kind, (reason, b"", None, None, is_tcp), Span)
        total.add(count, timestamp, timestamp if max_timestamp is None else max_timestamp)
        if self._is_logged and len(self._unlogged) < MAX_TOPICS:
            self._unlogged[reason, topic[:TOPIC_NAME_MAX]] += count
        if reason in SAMPLED and reason not in ABOUT_UNDERSTOOD:
            self._show(reason, sample, is_tcp=is_tcp)
        if self._file is not None and reason not in ABOUT_UNDERSTOOD:
            info = info_of(reason, version or api_key or 0, is_tcp=is_tcp)
            now_ms = wall_ms()
            self._file.copies.add(Copy(Target.DISCARDS, now_ms, now_ms, info, b"", b"", sample[: self._file.longest]))

    def _accuse(self, reason: DiscardReason, peer: Peer, count: int, sample: bytes) -> None:
        """Remember who sent bad messages; not everybody, if there are many."""
        before = self._culprits.pop((reason, peer), None)
        if before is None and len(self._culprits) >= RECENT:
            del self._culprits[next(iter(self._culprits))]
        command, total = (command_of(peer.pid), 0) if before is None else (before.command, before.count)
        self._culprits[reason, peer] = CulpritEvent(reason, *peer, command, total + count, sample[: self._prefix_size])

    def _show(self, reason: DiscardReason, sample: bytes, *, is_tcp: bool = False) -> None:
        self._samples.setdefault((reason, is_tcp), Recent()).see(sample[: self._prefix_size])

    def show_long(self, topic: bytes, values: Iterable[bytes]) -> None:
        """The beginnings of values that were too long, the oldest first."""
        for value in values:
            self._show(DiscardReason.LONG_MSG, topic + b" " + value)

    def copy(self, reason: DiscardReason, messages: Iterable[Message]) -> None:
        """Copy discarded messages to the file.  Their keys and values have at most `copy_size` bytes."""
        self._copy(info_of(reason), messages)

    def copy_duplicates(self, messages: Iterable[Message]) -> None:
        """Copy possible duplicates to the file, likewise."""
        self._copy("", messages)

    def _copy(self, info: str, messages: Iterable[Message]) -> None:
        if self._file is None:
            return
        now_ms = wall_ms()
        for each in messages:
            fields = (each.timestamp_ms, info, each.topic, each.key, each.value, each.partition_key, each.headers)
            self._file.copies.add(Copy(Target.DISCARDS, now_ms, *fields))

    def note_duplicates(self, topic: bytes, count: int, min_timestamp: int, max_timestamp: int) -> None:
        """Note messages that are sent again although the broker may have kept them; client timestamps in ms."""
        entry(self._duplicates, topic[:TOPIC_NAME_MAX], b"", Span).add(count, min_timestamp, max_timestamp)

    def flush(self) -> None:
        """Send what was noted.  Meant to be called a few times a second; costs nothing when there is nothing."""
        self._log_news()
        has_sums = bool(self._discards or self._duplicates)
        if has_sums and self._sender.send_bytes(encode_events(self._events())):
            self._discards.clear()
            self._samples.clear()
            self._duplicates.clear()
            self._culprits.clear()
        if self._file is not None:
            self._file.copies.flush()

    def _log_news(self) -> None:
        """Say in the log what was discarded since the last flush, once for each reason and topic."""
        for (reason, topic), count in self._unlogged.items():
            what = were_discarded(count, topic.decode("utf-8", "backslashreplace"))
            _LOG.error("%s: %s (%s).", what, reason.name, EXPLAINED[reason], extra={"about": (reason, topic)})
        self._unlogged.clear()

    def _events(self) -> Iterator[Event]:
        """The sums; the samples of a reason go with its first one."""
        samples = dict(self._samples)
        for (reason, topic, version, api_key, is_tcp), total in self._discards.items():
            shown = samples.pop((reason, is_tcp), Recent()).oldest_first
            span = (total.count, total.min_timestamp, total.max_timestamp)
            yield DiscardEvent(reason, topic, *span, shown, version, api_key, is_tcp)
        for topic, span_ in self._duplicates.items():
            yield DuplicateEvent(topic, span_.count, span_.min_timestamp, span_.max_timestamp)
        yield from self._culprits.values()


def command_of(pid: int) -> str:
    """The name of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "backslashreplace").strip()
    except OSError:
        return ""
