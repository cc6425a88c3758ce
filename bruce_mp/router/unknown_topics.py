"""Topics that the cluster does not know, and the messages that wait for them.

    FETCHING   waits for metadata requested after the topic's first message, because the topic may be new
    TO_CREATE  (with automatic creation) waits for its creation request
    CREATING   a broker has the creation request
    CREATED    waits for metadata with the topic; several fetches follow, because brokers learn of a topic one by one

Brokers hide a topic that the daemon's Kafka user may not see; only a request by name shows that it is *forbidden*.  At
most `MAX_FORBIDDEN` such topics stay FETCHING, and their messages wait for the permission.

The router refuses a topic that stays unknown or cannot be created: for some seconds it discards the topic's messages
without another request.  This bounds the memory for invented names: a topic is here only while the slab has messages
of it, and the router remembers at most `MAX_REFUSED` refusals.
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
    from bruce_mp.router.metadata_refresh import RefreshSchedule
    from bruce_mp.slab.runs import Segment

__all__ = ["UnknownTopics"]

UNKNOWN_REFUSAL_MS: Final = 5_000
"""The time for which the router discards messages of an unknown topic without another metadata request."""
START_GRACE_MS: Final = 2_000
"""The time after the first metadata during which the router refuses no topic as unknown, because a broker that has just
started may not know all topics; automatic creation needs no such time."""
CREATION_REFUSAL_MS: Final = 30_000
"""The time for which the router discards messages of a topic that could not be created."""
MAX_REFUSED: Final = 10_000
"""The most refused topics to remember; beyond them each message of an unknown topic causes a metadata request."""
FORBIDDEN_RETRY_MS: Final = 5_000
MAX_FORBIDDEN: Final = 100
"""The most topics to request by name: a broker refuses hidden and invented names alike, and senders may invent many."""
MAX_CREATED_AT_ONCE: Final = 100
CREATED_FETCH_DELAYS_MS: Final = (100, 400, 1_000, 3_000, 6_000, 12_000)
"""The delays between the metadata fetches that follow a topic creation."""
MAX_CREATION_REQUESTS: Final = 10
"""The most creation requests for a topic; one may fail because the controller moves."""
CREATION_RETRY_MS: Final = 1_000
"""The delay between two creation requests for a topic."""
SUCCESS: Final = frozenset({0, 5, 36})
"""NONE, LEADER_NOT_AVAILABLE (created, but no leader yet), TOPIC_ALREADY_EXISTS."""
RETRIABLE: Final = frozenset({7, 8, 13, 41, 89})
"""REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE, NETWORK_EXCEPTION, NOT_CONTROLLER, THROTTLING_QUOTA_EXCEEDED."""

_VALID_NAME: Final = re.compile(rb"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_NOT_REFUSED: Final = (0, DiscardReason.BAD_TOPIC)  # a refusal that ended at time 0; its reason is never used
_COUNTERS: Final = {
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

    For its next decision, the router ignores metadata of fetches that began before `fetch_after_ms`.
    """

    __slots__ = ("creation_requests", "fetch_after_ms", "fetches", "segments", "state")

    def __init__(self, fetch_after_ms: int) -> None:
        self.segments: list[Segment] = []
        self.fetch_after_ms = fetch_after_ms
        self.state = UnknownTopicState.FETCHING
        self.creation_requests = 0
        self.fetches = 0
        """The number of metadata fetches requested since the topic's creation."""


class UnknownTopics:
    """All unknown topics.  `autocreate` enables their creation.

    `count_free_entries` returns the number of further topics that the slab's topic table has room for.
    """

    def __init__(
        self, discards: Discards, refresh: RefreshSchedule, count_free_entries: Callable[[], int], *, autocreate: bool
    ) -> None:
        self._discards = discards
        self._refresh = refresh
        self._count_free_entries = count_free_entries
        self._autocreate = autocreate
        self._topics: dict[bytes, _UnknownTopic] = {}
        self._refused: dict[bytes, tuple[int, DiscardReason]] = {}
        """The end of each refused topic's refusal, and the reason for discards until then."""
        self._trusted_from_ms: int | None = None
        """The end of the grace period after the first metadata; None before the first metadata."""

    def apply_config(self, *, autocreate: bool) -> None:
        """Enable or disable topic creation; a change clears all refusals."""
        if autocreate != self._autocreate:
            self._autocreate = autocreate
            self._refused.clear()

    def waiting(self) -> Iterator[tuple[bytes, list[Segment]]]:
        for name, topic in self._topics.items():
            yield name, topic.segments

    def park(self, name: bytes, segment: Segment, now_ms: int) -> None:
        """Hold messages of an unknown topic, or discard them if the topic is refused."""
        until_ms, reason = self._refused.get(name, _NOT_REFUSED)
        if until_ms > now_ms:
            self._discards.settle([segment], reason, name, _COUNTERS[reason])
            return
        topic = self._topics.setdefault(name, _UnknownTopic(now_ms))
        topic.segments.append(segment)
        if topic.state is UnknownTopicState.FETCHING:
            self._refresh.request(max(now_ms, topic.fetch_after_ms))

    @property
    def names_to_request(self) -> list[bytes]:
        """Topics to request by name, because brokers may hide them; at most `MAX_FORBIDDEN`."""
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

        `ensure_numbered` gives a topic a number, and returns False if it stays unknown.
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
                self._refresh.request(topic.fetch_after_ms)
            elif topic.state in {UnknownTopicState.FETCHING, UnknownTopicState.CREATED}:
                self._decide_state(name, topic, started_ms, now_ms)
            elif topic.state is UnknownTopicState.TO_CREATE and self._count_free_entries() <= 0:
                self._refuse(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_REFUSAL_MS)
        return known

    def _decide_state(self, name: bytes, topic: _UnknownTopic, started_ms: int, now_ms: int) -> None:
        """Decide about a topic that metadata lacks: fetch again, create it, or refuse it."""
        assert self._trusted_from_ms is not None
        # Automatic creation needs no grace period: a broker that knows the topic answers TOPIC_ALREADY_EXISTS.
        if not self._autocreate and started_ms < self._trusted_from_ms:
            self._refresh.request(self._trusted_from_ms)
        elif topic.fetch_after_ms > started_ms:
            self._refresh.request(max(now_ms, topic.fetch_after_ms))
        elif topic.state is UnknownTopicState.CREATED and topic.fetches < len(CREATED_FETCH_DELAYS_MS):
            self._schedule_fetch(topic, now_ms)
        elif topic.state is UnknownTopicState.CREATED or not self._autocreate or self._count_free_entries() <= 0:
            self._refuse(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_REFUSAL_MS)
        elif topic.creation_requests >= MAX_CREATION_REQUESTS or _VALID_NAME.match(name) is None:
            self._refuse(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CREATION_REFUSAL_MS)
        else:
            topic.state = UnknownTopicState.TO_CREATE

    def _schedule_fetch(self, topic: _UnknownTopic, now_ms: int) -> None:
        topic.fetch_after_ms = now_ms + CREATED_FETCH_DELAYS_MS[topic.fetches]
        topic.fetches += 1
        self._refresh.request(topic.fetch_after_ms)

    def _refuse(self, name: bytes, reason: DiscardReason, until_ms: int) -> None:
        if len(self._refused) < MAX_REFUSED:
            self._refused[name] = (until_ms, reason)
        self._discards.settle(self._topics.pop(name).segments, reason, name, _COUNTERS[reason])

    # --- topic creation ----------------------------------------------------------------------------------------------

    @property
    def names_to_create(self) -> list[bytes]:
        """Topics to create now, at most as many as the slab's topic table has room for."""
        wanted = [name for name, topic in self._topics.items() if topic.state is UnknownTopicState.TO_CREATE]
        if not wanted:  # spares the router's loop the count of free entries
            return []
        return wanted[: min(MAX_CREATED_AT_ONCE, max(0, self._count_free_entries()))]

    def on_creation_started(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._topics[name].state = UnknownTopicState.CREATING

    def on_created(self, errors: Mapping[bytes, int], now_ms: int) -> None:
        """Apply Kafka's error code for each topic; the router repeats the request for topics without a code."""
        creating = [(name, topic) for name, topic in self._topics.items() if topic.state is UnknownTopicState.CREATING]
        for name, topic in creating:
            error = errors.get(name)
            topic.creation_requests += 1
            if error is None or error in RETRIABLE:
                topic.state = UnknownTopicState.FETCHING
                topic.fetch_after_ms = now_ms + CREATION_RETRY_MS
                self._refresh.request(topic.fetch_after_ms)
            elif error in SUCCESS:
                topic.state = UnknownTopicState.CREATED
                self._schedule_fetch(topic, now_ms)
            else:
                self._refuse(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CREATION_REFUSAL_MS)
