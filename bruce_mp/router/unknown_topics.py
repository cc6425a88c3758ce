"""Topics that the cluster does not know, and the messages that wait for them.

    ASKING    waits for metadata requested after the topic's first message, since the topic may be new
    WANTED    (with automatic creation) waits for its creation
    MAKING    a broker has the creation request
    MADE      created; brokers learn of it one by one, so several metadata fetches follow

Brokers hide a topic that the daemon's user may not see; a request by name shows the refusal.  Such a topic stays
ASKING: its messages wait for the permission, for at most MOST_FORBIDDEN topics.

A topic that stays unknown or cannot be created is refused for a while without another request.  Memory for invented
names is bounded: a name waits only while the slab has messages of it, and at most MOST_REFUSED refusals are kept.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from itertools import islice
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.discards.settlement import Discards
    from bruce_mp.router.metadata_refresh import RefreshSchedule
    from bruce_mp.slab.runs import Segment

__all__ = ["UnknownTopics"]

UNKNOWN_TOPIC_MS: Final = 5_000
"""The time for which an unknown topic is refused without another request."""
YOUNG_MS: Final = 2_000
"""The time after the router's first metadata in which no missing topic is given up, because a broker that has just
started may not know all topics."""
CANNOT_BE_MADE_MS: Final = 30_000
"""The time for which a failed topic creation is not repeated."""
MOST_REFUSED: Final = 10_000
"""The most refused topics to remember; each message of any other causes a request."""
FORBIDDEN_LOOK_MS: Final = 5_000
"""The interval of requests for forbidden topics."""
MOST_FORBIDDEN: Final = 100
"""The most topics that are requested by name and wait.  Clients may invent names; brokers hide which exist."""
MADE_AT_ONCE: Final = 100
LOOK_AFTER_MS: Final = (100, 400, 1_000, 3_000, 6_000, 12_000)
"""The delays between the metadata fetches that follow a topic creation."""
MOST_ATTEMPTS: Final = 10
TRY_AGAIN_MS: Final = 1_000
SUCCESS: Final = frozenset({0, 5, 36})
"""NONE, LEADER_NOT_AVAILABLE (created, no leader yet), TOPIC_ALREADY_EXISTS."""
TRY_AGAIN: Final = frozenset({7, 8, 13, 41, 89})
"""Timeout, broker or network failure, not the controller, quota exceeded: independent of the topic."""

_VALID_NAME: Final = re.compile(rb"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_COUNTERS: Final = {
    DiscardReason.BAD_TOPIC: Counter.DiscardBadTopicMsgOnRoute,
    DiscardReason.TOPIC_AUTOCREATE_FAIL: Counter.DiscardOnTopicAutocreateFail,
}


@unique
class UnknownTopicState(Enum):
    """The state of an unknown topic."""

    ASKING = "asking"
    WANTED = "wanted"
    MAKING = "making"
    MADE = "made"


class _Waiting:
    """Messages of one topic.  Metadata requested before `since_ms` decides nothing about the topic."""

    __slots__ = ("attempts", "looks", "segments", "since_ms", "step")

    def __init__(self, since_ms: int) -> None:
        self.segments: list[Segment] = []
        self.since_ms = since_ms
        self.step = UnknownTopicState.ASKING
        self.attempts = 0
        self.looks = 0


class UnknownTopics:
    """All unknown topics.  `autocreate` enables their creation; `room` returns the free entries of the table."""

    def __init__(
        self, discards: Discards, refresh: RefreshSchedule, room: Callable[[], int], *, autocreate: bool
    ) -> None:
        self._discards = discards
        self._refresh = refresh
        self._room = room
        self._autocreate = autocreate
        self._waiting: dict[bytes, _Waiting] = {}
        self._refused: dict[bytes, tuple[int, DiscardReason]] = {}
        self._believes_from_ms: int | None = None

    def apply_config(self, *, autocreate: bool) -> None:
        """Enable or disable topic creation; a change clears all refusals."""
        if autocreate != self._autocreate:
            self._autocreate = autocreate
            self._refused.clear()

    def park(self, name: bytes, segment: Segment, now_ms: int) -> None:
        """Hold messages of an unknown topic, or discard them if the topic was refused."""
        until, reason = self._refused.get(name, (0, DiscardReason.BAD_TOPIC))
        if until > now_ms:
            self._discards.settle([segment], reason, name, _COUNTERS[reason])
            return
        waiting = self._waiting.setdefault(name, _Waiting(now_ms))
        waiting.segments.append(segment)
        if waiting.step is UnknownTopicState.ASKING:
            self._refresh.request(max(now_ms, waiting.since_ms))

    @property
    def names_to_look_up(self) -> list[bytes]:
        """Topics to request by name, since brokers may hide them; at most MOST_FORBIDDEN."""
        names = (name for name, waiting in self._waiting.items() if waiting.step is UnknownTopicState.ASKING)
        return list(islice((name for name in names if _VALID_NAME.match(name)), MOST_FORBIDDEN))

    def settle(
        self,
        is_known: Callable[[bytes], bool],
        started_ms: int,
        now_ms: int,
        forbidden: frozenset[bytes] = frozenset(),
    ) -> list[Segment]:
        """Apply metadata of a fetch begun at `started_ms`; return the messages of topics that became known."""
        self._refused = {name: refusal for name, refusal in self._refused.items() if refusal[0] > now_ms}
        if self._believes_from_ms is None:
            self._believes_from_ms = now_ms + YOUNG_MS
        known: list[Segment] = []
        for name, waiting in list(self._waiting.items()):
            if is_known(name):
                known += self._waiting.pop(name).segments
            elif name in forbidden and waiting.step is UnknownTopicState.ASKING:
                waiting.since_ms = now_ms + FORBIDDEN_LOOK_MS
                self._refresh.request(waiting.since_ms)
            elif waiting.step in {UnknownTopicState.ASKING, UnknownTopicState.MADE}:
                self._decide(name, waiting, started_ms, now_ms)
            elif waiting.step is UnknownTopicState.WANTED and self._room() <= 0:
                self._give_up(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_TOPIC_MS)
        return known

    def _decide(self, name: bytes, waiting: _Waiting, started_ms: int, now_ms: int) -> None:
        assert self._believes_from_ms is not None
        if not self._autocreate and started_ms < self._believes_from_ms:
            self._refresh.request(self._believes_from_ms)
        elif waiting.since_ms > started_ms:
            self._refresh.request(max(now_ms, waiting.since_ms))
        elif waiting.step is UnknownTopicState.MADE and waiting.looks < len(LOOK_AFTER_MS):
            self._look_later(waiting, now_ms)
        elif waiting.step is UnknownTopicState.MADE or not self._autocreate or self._room() <= 0:
            self._give_up(name, DiscardReason.BAD_TOPIC, now_ms + UNKNOWN_TOPIC_MS)
        elif waiting.attempts >= MOST_ATTEMPTS or _VALID_NAME.match(name) is None:
            self._give_up(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CANNOT_BE_MADE_MS)
        else:
            waiting.step = UnknownTopicState.WANTED

    def _look_later(self, waiting: _Waiting, now_ms: int) -> None:
        waiting.since_ms = now_ms + LOOK_AFTER_MS[waiting.looks]
        waiting.looks += 1
        self._refresh.request(waiting.since_ms)

    def _give_up(self, name: bytes, reason: DiscardReason, until_ms: int) -> None:
        if len(self._refused) < MOST_REFUSED:
            self._refused[name] = (until_ms, reason)
        self._discards.settle(self._waiting.pop(name).segments, reason, name, _COUNTERS[reason])

    # --- making topics -----------------------------------------------------------------------------------------------

    @property
    def names_to_create(self) -> list[bytes]:
        """Topics to create, within the room of the slab's table."""
        wanted = [name for name, waiting in self._waiting.items() if waiting.step is UnknownTopicState.WANTED]
        return wanted[: min(MADE_AT_ONCE, max(0, self._room()))] if wanted else []

    def on_creation_started(self, names: Iterable[bytes]) -> None:
        """Record that a broker has the creation request for these topics."""
        for name in names:
            self._waiting[name].step = UnknownTopicState.MAKING

    def on_created(self, answers: Mapping[bytes, int], now_ms: int) -> None:
        """Apply Kafka's error code for each created topic; topics without a code are tried again."""
        making = [
            (name, waiting) for name, waiting in self._waiting.items() if waiting.step is UnknownTopicState.MAKING
        ]
        for name, waiting in making:
            error = answers.get(name)
            waiting.attempts += 1
            if error is None or error in TRY_AGAIN:
                waiting.step = UnknownTopicState.ASKING
                waiting.since_ms = now_ms + TRY_AGAIN_MS
                self._refresh.request(waiting.since_ms)
            elif error in SUCCESS:
                waiting.step = UnknownTopicState.MADE
                self._look_later(waiting, now_ms)
            else:
                self._give_up(name, DiscardReason.TOPIC_AUTOCREATE_FAIL, now_ms + CANNOT_BE_MADE_MS)
