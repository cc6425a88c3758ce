"""Discards, from where they happen to the report that an operator reads.

`DiscardReporter` lives in a process of the message path.  It adds up in memory and sends the sums a few times a second,
so that a flood of bad messages costs a flood of additions and a handful of frames.  It never blocks and is bounded:
what the link refuses stays added up for the next flush, and beyond MAX_TOPICS kinds the rest goes under no topic.

`ReportBook` lives in status.  It is pure: time comes as an argument.  A report covers one period; period n begins n
intervals after `epoch`.  A report is finished by whatever happens first after its period, be it an event, a reader or a
timer, and nothing that was recorded gets lost by that, however many periods have passed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from bruce_mp.errors import DiscardReason
from bruce_mp.slab.layout import TOPIC_NAME_MAX
from bruce_mp.telemetry.events import DiscardEvent, DuplicateEvent, encode_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.telemetry.events import Event

__all__ = ["ABOUT_VALID_MESSAGES", "DiscardReport", "DiscardReporter", "Recent", "ReportBook", "TopicDiscards"]

_LOG = logging.getLogger(__name__)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_TOPICS: Final = 1000
"""Kinds of discards in one flush, and topics in one report; a process must not grow with what clients make up."""
MAX_SAMPLES: Final = 5
RECENT: Final = 25
FINISHED_KEPT: Final = 4

SAMPLED: Final = frozenset({DiscardReason.MALFORMED, DiscardReason.UNCLEAN_DISCONNECT, DiscardReason.LONG_MSG})
"""Reasons whose messages are shown: the others say all by topic or version."""

ABOUT_VALID_MESSAGES: Final = frozenset(DiscardReason) - {
    DiscardReason.MALFORMED,
    DiscardReason.UNSUPPORTED_API_KEY,
    DiscardReason.UNSUPPORTED_VERSION,
    DiscardReason.BAD_TOPIC,
    DiscardReason.UNCLEAN_DISCONNECT,
}
"""Reasons that the report lists by topic: there was nothing wrong with the topic."""


class Recent:
    """The most recently seen distinct entries, at most `limit`."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._entries: dict[bytes, None] = {}
        self._limit = limit

    def see(self, entry: bytes) -> None:
        """Note an entry as the newest."""
        self._entries.pop(entry, None)
        self._entries[entry] = None
        if len(self._entries) > self._limit:
            del self._entries[next(iter(self._entries))]

    @property
    def oldest_first(self) -> tuple[bytes, ...]:
        return tuple(self._entries)

    @property
    def newest_first(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._entries))


class Span:
    """How many messages, and the range of their client timestamps in ms."""

    __slots__ = ("count", "max_timestamp", "min_timestamp")

    def __init__(self) -> None:
        self.count = 0
        self.min_timestamp = self.max_timestamp = 0

    def add(self, count: int, min_timestamp: int, max_timestamp: int) -> None:
        if self.count:
            min_timestamp = min(min_timestamp, self.min_timestamp)
            max_timestamp = max(max_timestamp, self.max_timestamp)
        self.count += count
        self.min_timestamp, self.max_timestamp = min_timestamp, max_timestamp


def _entry(table: dict[_Key, _Value], key: _Key, rest: _Key, make: Callable[[], _Value]) -> _Value:
    """The value of `key`, which becomes the newest; in a table that is full a new key shares that of `rest`."""
    value = table.pop(key, None)
    if value is None and len(table) >= MAX_TOPICS:
        key = rest
        value = table.pop(key, None)
    table[key] = value = make() if value is None else value
    return value


# --- in the processes of the message path -----------------------------------------------------------------------------


class EventSender(Protocol):
    """As `pipes.links.Sender`."""

    def send_bytes(self, data: bytes) -> bool:
        """Send without blocking; False when it was refused."""


_Kind = tuple[DiscardReason, bytes, int | None, int | None]
"""Reason, topic, version, API key: what one sum is kept for."""


class _Sum(Span):
    __slots__ = ("samples",)

    def __init__(self) -> None:
        super().__init__()
        self.samples = Recent(MAX_SAMPLES)


class DiscardReporter:
    """Adds up discards and sends the sums on the link DISCARDS; one in each process that discards.

    `prefix_size` is how many bytes of a bad message are shown; `is_logged` says whether the log hears of discards.
    """

    def __init__(self, sender: EventSender, prefix_size: int, *, is_logged: bool = False) -> None:
        self._sender = sender
        self._is_logged = is_logged
        self._prefix_size = prefix_size
        self._discards: dict[_Kind, _Sum] = {}
        self._duplicates: dict[bytes, Span] = {}
        self._unlogged: Counter[tuple[DiscardReason, bytes]] = Counter()

    @property
    def pending(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._discards or self._duplicates)

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
    ) -> None:
        """Note `count` discarded messages.

        `timestamp` is the client's, in ms; of several messages the smallest, with `max_timestamp` the largest.
        `sample` is the beginning of what was received (LONG_MSG: of the value); used for the reasons in SAMPLED.
        """
        total = _entry(
            self._discards, (reason, topic[:TOPIC_NAME_MAX], version, api_key), (reason, b"", None, None), _Sum
        )
        total.add(count, timestamp, timestamp if max_timestamp is None else max_timestamp)
        if self._is_logged and len(self._unlogged) < MAX_TOPICS:
            self._unlogged[reason, topic[:TOPIC_NAME_MAX]] += count
        if reason in SAMPLED:
            shown = topic + b" " + sample if reason is DiscardReason.LONG_MSG else sample
            total.samples.see(shown[: self._prefix_size])

    def note_duplicates(self, topic: bytes, count: int, min_timestamp: int, max_timestamp: int) -> None:
        """Note messages that are sent again although the broker may have kept them; client timestamps in ms."""
        _entry(self._duplicates, topic[:TOPIC_NAME_MAX], b"", Span).add(count, min_timestamp, max_timestamp)

    def flush(self) -> None:
        """Send what was noted.  Meant to be called a few times a second; costs nothing when there is nothing."""
        self._log_news()
        if self.pending and self._sender.send_bytes(encode_events(self._events())):
            self._discards.clear()
            self._duplicates.clear()

    def _log_news(self) -> None:
        """Say in the log what was discarded since the last flush, once for each reason and topic."""
        for (reason, topic), count in self._unlogged.items():
            of_topic = f" of topic {topic.decode('utf-8', 'backslashreplace')}" if topic else ""
            text = "%d messages%s were discarded: %s."
            _LOG.error(text, count, of_topic, reason.name, extra={"about": (reason, topic)})
        self._unlogged.clear()

    def _events(self) -> Iterator[Event]:
        for (reason, topic, version, api_key), total in self._discards.items():
            span = (total.count, total.min_timestamp, total.max_timestamp)
            yield DiscardEvent(reason, topic, *span, total.samples.oldest_first, version, api_key)
        for topic, span_ in self._duplicates.items():
            yield DuplicateEvent(topic, span_.count, span_.min_timestamp, span_.max_timestamp)


# --- in status --------------------------------------------------------------------------------------------------------


class TopicDiscards(Span):
    """The discards of one topic; `reasons` says how many for which reason."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[DiscardReason, int] = {}


class DiscardReport:
    """What was discarded in one period.

    `counts` has all reasons.  `recent` has the samples by reason, and for BAD_TOPIC the names.  `topics` has the
    reasons of ABOUT_VALID_MESSAGES; topic b"" stands for all those beyond MAX_TOPICS.  `was_read`: somebody asked for
    it while its period ran.
    """

    def __init__(self, number: int, start_time: int) -> None:
        self.id = number
        self.start_time = start_time
        self.was_read = False
        self.counts = dict.fromkeys(DiscardReason, 0)
        self.recent = {reason: Recent(RECENT) for reason in (*SAMPLED, DiscardReason.BAD_TOPIC)}
        self.versions: dict[int, int] = {}
        self.api_keys: dict[int, int] = {}
        self.topics: dict[bytes, TopicDiscards] = {}
        self.duplicates: dict[bytes, Span] = {}

    def add(self, event: Event) -> None:
        """Take an event in."""
        if isinstance(event, DuplicateEvent):
            span = _entry(self.duplicates, event.topic, b"", Span)
            span.add(event.count, event.min_timestamp, event.max_timestamp)
        else:
            self._add_discard(event)

    def _add_discard(self, event: DiscardEvent) -> None:
        self.counts[event.reason] += event.count
        if event.version is not None:
            self.versions[event.version] = self.versions.get(event.version, 0) + event.count
        if event.api_key is not None:
            self.api_keys[event.api_key] = self.api_keys.get(event.api_key, 0) + event.count
        for sample in self._shown(event):
            self.recent[event.reason].see(sample)
        if event.reason in ABOUT_VALID_MESSAGES:
            self._add_topic(event)

    @staticmethod
    def _shown(event: DiscardEvent) -> tuple[bytes, ...]:
        if event.reason is DiscardReason.BAD_TOPIC:
            return (event.topic,) if event.topic else ()
        return event.samples if event.reason in SAMPLED else ()

    def _add_topic(self, event: DiscardEvent) -> None:
        topic = _entry(self.topics, event.topic, b"", TopicDiscards)
        topic.add(event.count, event.min_timestamp, event.max_timestamp)
        topic.reasons[event.reason] = topic.reasons.get(event.reason, 0) + event.count


class ReportBook:
    """The report in progress and the last few finished ones.  Times are seconds since the epoch.

    Period n is from epoch + n * interval to epoch + (n + 1) * interval.  A clock that was set back ends a period too.
    """

    def __init__(self, interval: int, epoch: int, now: float) -> None:
        self.interval = interval
        self._epoch = epoch
        self.unfinished = self._open(now)
        self._finished: deque[DiscardReport] = deque(maxlen=FINISHED_KEPT)

    def _open(self, now: float) -> DiscardReport:
        number = int((now - self._epoch) // self.interval)
        return DiscardReport(number, self._epoch + number * self.interval)

    @property
    def finished(self) -> tuple[DiscardReport, ...]:
        """The last finished reports, the newest first."""
        return tuple(reversed(self._finished))

    def record(self, event: Event, now: float) -> None:
        """Put an event into the report of the present period."""
        self.rotate(now)
        self.unfinished.add(event)

    def rotate(self, now: float) -> DiscardReport | None:
        """Finish the report in progress if its period is over; the report that was finished."""
        start = self.unfinished.start_time
        if start <= now < start + self.interval:
            return None
        finished = self.unfinished
        self._finished.append(finished)
        self.unfinished = self._open(now)
        return finished
