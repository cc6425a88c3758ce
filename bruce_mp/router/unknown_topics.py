"""Topics that the metadata of the cluster does not show, and the messages that wait for them.

An unknown topic is in a state:

    FETCHING   waits for metadata of a fetch that began after the topic's first message, because the topic may be new
    TO_CREATE  (only with automatic creation) waits until the router sends a request to create it
    CREATING   waits for a broker's answer to the creation request
    CREATED    waits for metadata with the topic; the router fetches several times, because not all brokers learn of a
               new topic at once, and then sends another request to create it

If the daemon's Kafka user may not see a topic, the topic is *forbidden*; only a request by name shows this.  At most
`MAX_FORBIDDEN` topics are requested by name.  The forbidden topics among them stay FETCHING, and their messages wait
until the user gets the permission.

The router *refuses* a topic that stays unknown or cannot be created: for some seconds it discards the topic's messages
without another request to a broker.  It remembers at most `MAX_REFUSED` refusals, which bounds the memory that senders
can fill with invented names.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from itertools import islice
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.discards.settlement import Discards
    from bruce_mp.router.metadata_refresh import FetchSchedule
    from bruce_mp.slab.runs import Segment

__all__ = ["UnknownTopics"]

UNKNOWN_REFUSAL_MS: Final = 5_000
"""How long the router discards messages of an unknown topic without another metadata request."""
START_GRACE_MS: Final = 2_000
"""How long the router refuses no topic as unknown after the first metadata, because a broker that has just started may
not know all topics.  Automatic creation ignores this time."""
CREATION_REFUSAL_MS: Final = 30_000
"""How long the router discards messages of a topic that could not be created."""
MAX_REFUSED: Final = 10_000
"""The maximum number of remembered refusals.  While there are so many, each message of another unknown topic causes a
metadata request."""
FORBIDDEN_RETRY_MS: Final = 5_000
"""The delay before the next metadata request for a forbidden topic."""
MAX_FORBIDDEN: Final = 100
"""The maximum number of topics to request by name.  A broker gives the same answer for a forbidden topic and for an
invented name, and senders may invent many names."""
MAX_CREATED_AT_ONCE: Final = 100
"""The maximum number of topics in a creation request."""
CREATED_FETCH_DELAYS_MS: Final = (100, 400, 1_000, 3_000, 6_000, 12_000)
"""The delays between the metadata fetches that follow a topic creation."""
MAX_CREATION_REQUESTS: Final = 10
"""The maximum number of creation requests for a topic; some may fail because another broker becomes the controller."""
CREATION_RETRY_MS: Final = 1_000
"""The delay between two creation requests for a topic."""
SUCCESS: Final = frozenset({0, 5, 36})
"""NONE, LEADER_NOT_AVAILABLE (created, but no leader yet), TOPIC_ALREADY_EXISTS."""
RETRIABLE: Final = frozenset({7, 8, 13, 41, 89})
"""REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE, NETWORK_EXCEPTION, NOT_CONTROLLER, THROTTLING_QUOTA_EXCEEDED."""

_VALID_NAME: Final = re.compile(rb"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_NOT_REFUSED: Final = (0, DiscardReason.BAD_TOPIC)
"""The default for a topic without a refusal: a refusal that ended at time 0, so its reason is never used."""
_DISCARD_COUNTERS: Final = {
    DiscardReason.BAD_TOPIC: Counter.DiscardBadTopicMsgOnRoute,
    DiscardReason.TOPIC_AUTOCREATE_FAIL: Counter.DiscardOnTopicAutocreateFail,
}


@unique
class UnknownTopicState(Enum):
    FETCHING = "fetching"
    TO_CREATE = "to create"
    CREATING = "creating"
    CREATED = "created"


class _UnknownTopic:
    """An unknown topic and its messages.

    The router decides about the topic by metadata of a fetch that began at `fetch_after_ms` or later.
    """

    __slots__ = ("creation_request_count", "fetch_after_ms", "fetch_count", "segments", "state")

    def __init__(self, fetch_after_ms: int) -> None:
        self.segments: list[Segment] = []
        self.fetch_after_ms = fetch_after_ms
        self.state = UnknownTopicState.FETCHING
        self.creation_request_count = 0
        self.fetch_count = 0
        """How many fetches of `CREATED_FETCH_DELAYS_MS` were requested since the topic's last creation."""


class UnknownTopics:
    """All unknown topics.  `autocreate` enables their creation.

    `count_free_entries` returns the number of further topics for which the slab's topic table has room.
    """

    def __init__(
        self,
        discards: Discards,
        fetch_schedule: FetchSchedule,
        count_free_entries: Callable[[], int],
        *,
        autocreate: bool,
    ) -> None:
        self._discards = discards
        self._fetch_schedule = fetch_schedule
        self._count_free_entries = count_free_entries
        self._autocreate = autocreate
        self._topics: dict[bytes, _UnknownTopic] = {}
        self._refused: dict[bytes, tuple[int, DiscardReason]] = {}
        """By topic name: (end of the refusal, reason with which messages are discarded until then)."""
        self._trusted_from_ms: int | None = None
        """The end of `START_GRACE_MS` after the first metadata; None before the first metadata.  Metadata of a fetch
        that began later is trusted to show all topics."""

    def apply_config(self, *, autocreate: bool) -> None:
        """Enable or disable automatic creation; a change clears all refusals.

        If it is disabled, the router does not create the topics that are TO_CREATE; new metadata decides about them.
        """
        if autocreate == self._autocreate:
            return
        self._autocreate = autocreate
        self._refused.clear()
        for topic in self._topics.values():
            if topic.state is UnknownTopicState.TO_CREATE:
                topic.state = UnknownTopicState.FETCHING
                self._fetch_schedule.request(topic.fetch_after_ms)

    def waiting_segments(self) -> Iterator[tuple[bytes, list[Segment]]]:
        for name, topic in self._topics.items():
            yield name, topic.segments

    def park(self, name: bytes, segment: Segment, now_ms: int) -> None:
        """Hold messages of an unknown topic, or discard them if the topic is refused."""
        until_ms, reason = self._refused.get(name, _NOT_REFUSED)
        if until_ms > now_ms:
            self._discards.settle([segment], reason, name, _DISCARD_COUNTERS[reason])
            return
        topic = self._topics.setdefault(name, _UnknownTopic(now_ms))
        topic.segments.append(segment)
        if topic.state is UnknownTopicState.FETCHING:
            self._fetch_schedule.request(max(now_ms, topic.fetch_after_ms))

    @property
    def names_to_request(self) -> list[bytes]:
        """At most `MAX_FORBIDDEN` topics that a fetch requests by name, because they may be forbidden."""
        names = (name for name, topic in self._topics.items() if topic.state is UnknownTopicState.FETCHING)
        return list(islice((name for name in names if _VALID_NAME.match(name)), MAX_FORBIDDEN))

    def on_metadata(
        self,
        ensure_numbered: Callable[[bytes], bool],
        started_ms: int,
        now_ms: int,
        forbidden: frozenset[bytes] = frozenset(),
    ) -> list[Segment]:
        """Apply metadata of a fetch that began at `started_ms`; return the messages of topics that became known.

        `ensure_numbered` gives a topic its number in the slab's topic table; it returns False if the topic is unknown
        or the table is full.
        """
        self._refused = {name: refusal for name, refusal in self._refused.items() if refusal[0] > now_ms}
        if self._trusted_from_ms is None:
            self._trusted_from_ms = now_ms + START_GRACE_MS
        known: list[Segment] = []
        for name, topic in list(self._topics.items()):
            if ensure_numbered(name):
                known += self._topics.pop(name).segments
            elif name in forbidden and topic.state is UnknownTopicState.FETCHING:
                topic.fetch_after_ms = now_ms + FORBIDDEN_RETRY_MS
                self._fetch_schedule.request(topic.fetch_after_ms)
            elif topic.state in {UnknownTopicState.FETCHING, UnknownTopicState.CREATED}:
                self._decide_state(name, topic, started_ms, now_ms)
            elif topic.state is UnknownTopicState.TO_CREATE and self._count_free_entries() <= 0:
                self._refuse(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_REFUSAL_MS)
        return known

    def _decide_state(self, name: bytes, topic: _UnknownTopic, started_ms: int, now_ms: int) -> None:
        """For a topic that metadata lacks, decide to fetch metadata again, to create the topic or to refuse it."""
        assert self._trusted_from_ms is not None
        # Automatic creation needs no trusted metadata: a broker that knows the topic answers TOPIC_ALREADY_EXISTS.
        if not self._autocreate and started_ms < self._trusted_from_ms:
            self._fetch_schedule.request(self._trusted_from_ms)
        elif topic.fetch_after_ms > started_ms:
            self._fetch_schedule.request(max(now_ms, topic.fetch_after_ms))
        elif topic.state is UnknownTopicState.CREATED and topic.fetch_count < len(CREATED_FETCH_DELAYS_MS):
            self._schedule_fetch(topic, now_ms)
        elif not self._autocreate or self._count_free_entries() <= 0:
            self._refuse(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_REFUSAL_MS)
        elif topic.creation_request_count >= MAX_CREATION_REQUESTS or _VALID_NAME.match(name) is None:
            self._refuse(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CREATION_REFUSAL_MS)
        else:
            topic.state, topic.fetch_count = UnknownTopicState.TO_CREATE, 0

    def _schedule_fetch(self, topic: _UnknownTopic, now_ms: int) -> None:
        """Request the next of the fetches that follow a topic's creation."""
        topic.fetch_after_ms = now_ms + CREATED_FETCH_DELAYS_MS[topic.fetch_count]
        topic.fetch_count += 1
        self._fetch_schedule.request(topic.fetch_after_ms)

    def _refuse(self, name: bytes, reason: DiscardReason, until_ms: int) -> None:
        if len(self._refused) < MAX_REFUSED:
            self._refused[name] = (until_ms, reason)
        self._discards.settle(self._topics.pop(name).segments, reason, name, _DISCARD_COUNTERS[reason])

    # --- topic creation ----------------------------------------------------------------------------------------------

    @property
    def names_to_create(self) -> list[bytes]:
        """Topics to create now; their number is limited by the room in the slab's topic table."""
        wanted = [name for name, topic in self._topics.items() if topic.state is UnknownTopicState.TO_CREATE]
        if not wanted:  # the usual case in each round of the router's loop: do not count the free entries
            return []
        return wanted[: min(MAX_CREATED_AT_ONCE, max(0, self._count_free_entries()))]

    def on_creation_started(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._topics[name].state = UnknownTopicState.CREATING

    def on_creation_answered(self, errors: Mapping[bytes, int], now_ms: int) -> None:
        """Apply Kafka's error code of each topic name.

        A topic without an error code or with a retriable one becomes FETCHING: if metadata still lacks the topic, the
        router repeats the creation request.
        """
        creating = [(name, topic) for name, topic in self._topics.items() if topic.state is UnknownTopicState.CREATING]
        for name, topic in creating:
            error = errors.get(name)
            topic.creation_request_count += 1
            if error is None or error in RETRIABLE:
                topic.state = UnknownTopicState.FETCHING
                topic.fetch_after_ms = now_ms + CREATION_RETRY_MS
                self._fetch_schedule.request(topic.fetch_after_ms)
            elif error in SUCCESS:
                topic.state = UnknownTopicState.CREATED
                self._schedule_fetch(topic, now_ms)
            else:
                self._refuse(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CREATION_REFUSAL_MS)
