"""Stalls: partitions with the same oldest waiting message for too long.

Dispatchers and the router report their stalls once a second; the health page judges them.

Kafka acknowledges the messages of a partition in order, so the oldest one changes with each acknowledgement.  A message
waits from the time at which it may be sent: batch delays do not count.  It stays at its position in the slab while
router and dispatchers hand it over, so a pause of its partition does not end a stall.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from bruce_mp.slab.runs import Segment

__all__ = ["OldestMessageTimes", "PartitionStall", "StallSampler", "WaitingSegments"]

MIN_STALL_MS: Final = 500
"""The shortest reported stall: half the interval of the samples, so that two with the same message are enough."""
REMEMBERED_MS: Final = 10_000
"""Time for which a message is remembered after its last report, as it may be on its way to another process."""
MAX_LISTED_STALLS: Final = 1000
"""Stalls that a report lists, so that it fits into a frame."""

MessagePosition = tuple[int, int, int, int]
"""Identity of a message: chunk, its generation, run, and first byte of the record."""


class PartitionStall(msgspec.Struct, frozen=True):
    """A partition, the broker that leads it (None without one), and its waiting messages.

    `partition` is `ALL_PARTITIONS` for messages that have no partition yet; `topic` is empty before the first metadata.
    `since_ms` is the time at which `oldest`, the oldest message, was first seen; it may have arrived earlier.
    """

    topic: bytes
    partition: int
    node: int | None
    messages: int
    since_ms: int
    oldest: MessagePosition


class WaitingMessages(Protocol):
    """Messages that may be sent, in order: a queue of a dispatcher or a route of the router."""

    @property
    def oldest(self) -> "Segment | None":
        """The segment with the oldest message; None if no message waits."""

    @property
    def messages(self) -> int:
        """The number of waiting messages."""


class WaitingSegments(NamedTuple):
    """Segments that wait for metadata or for a partition, the oldest first."""

    segments: "Sequence[Segment]"

    @property
    def oldest(self) -> "Segment | None":
        return self.segments[0] if self.segments else None

    @property
    def messages(self) -> int:
        return sum(segment.records for segment in self.segments)


_Key = TypeVar("_Key", bound="Hashable")


class _Observation(NamedTuple):
    """The oldest message of a key, with the times at which it was first and last seen."""

    oldest: MessagePosition
    first_ms: int
    last_ms: int


class OldestMessageTimes(Generic[_Key]):
    """The oldest message of each key, with the time at which it was first seen."""

    def __init__(self) -> None:
        self._observations: dict[_Key, _Observation] = {}

    def observe(self, key: _Key, oldest: MessagePosition, since_ms: int, now_ms: int) -> int:
        """Record that `oldest` has been a key's oldest message since `since_ms`; return the earliest such time."""
        before = self._observations.get(key)
        if before is not None and before.oldest == oldest:
            since_ms = min(since_ms, before.first_ms)
        self._observations[key] = _Observation(oldest, since_ms, now_ms)
        return since_ms

    def expire(self, now_ms: int) -> None:
        """Remove the messages that were not observed for `REMEMBERED_MS`."""
        self._observations = {
            key: observation
            for key, observation in self._observations.items()
            if now_ms - observation.last_ms < REMEMBERED_MS
        }


class StallSampler:
    """Finds stalls by samples, so that neither sending nor acknowledging a batch costs anything."""

    def __init__(self) -> None:
        self._times: OldestMessageTimes[tuple[bytes, int]] = OldestMessageTimes()

    def sample(
        self, partitions: "Iterable[tuple[bytes, int, int | None, WaitingMessages]]", now_ms: int
    ) -> tuple[PartitionStall, ...]:
        """Return the oldest `MAX_LISTED_STALLS` stalls of (topic, partition, leader, messages), sorted by age."""
        stalled = []
        for topic, partition, node, waiting in partitions:
            if (segment := waiting.oldest) is None:
                continue
            oldest = (segment.chunk, segment.generation, segment.run, segment.first)
            since_ms = self._times.observe((topic, partition), oldest, since_ms=now_ms, now_ms=now_ms)
            if now_ms - since_ms >= MIN_STALL_MS:
                stalled.append((since_ms, topic, partition, node, oldest, waiting))
        self._times.expire(now_ms)
        stalled.sort(key=lambda stall: stall[:3])  # by time, topic and partition
        return tuple(
            PartitionStall(topic, partition, node, waiting.messages, since_ms, oldest)
            for since_ms, topic, partition, node, oldest, waiting in stalled[:MAX_LISTED_STALLS]
        )
