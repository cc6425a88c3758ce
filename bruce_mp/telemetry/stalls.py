"""Stalls: partitions with an oldest waiting message that stays the same for too long.

Dispatchers and the router report their stalls once a second; the health page decides which are problems.

Kafka acknowledges the messages of a partition in order, so a partition's oldest waiting message changes with each
acknowledgment.  A message waits from the time at which it may be sent, so delays by batching do not count.  A message
stays at its position in the slab while the router and dispatchers hand it to each other.  The position identifies it,
so a pause of its partition does not end a stall.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from bruce_mp.slab.runs import Segment

__all__ = ["OldestMessageTimes", "PartitionStall", "StallSampler", "WaitingSegments"]

MIN_STALL_MS: Final = 500
"""The shortest reported stall: half the interval of the samples, so that a message in two of them is enough."""
REMEMBERED_MS: Final = 10_000
"""The time for which a message is remembered after its last sample, because it may be on its way to another process."""
MAX_LISTED_STALLS: Final = 1000
"""The maximum number of stalls in a report, so that the report fits into a frame."""

MessagePosition = tuple[int, int, int, int]
"""The position of a message in the slab: chunk, generation of the chunk, offset of the run, offset of the record."""


class PartitionStall(msgspec.Struct, frozen=True):
    """A partition, the broker that leads it (None if no broker does), and the number of its waiting messages.

    `partition` is `ALL_PARTITIONS` for messages that have no partition yet; `topic` is empty before the first metadata.
    `since_ms` is the time at which `oldest`, the oldest message, was first seen; the message may have arrived earlier.
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
    def first_segment(self) -> "Segment | None":
        """The segment to be sent first, which begins with the oldest message; None if no message waits."""

    @property
    def message_count(self) -> int:
        """The number of waiting messages."""


class WaitingSegments(NamedTuple):
    """Segments that wait for metadata or for a partition, the oldest first."""

    segments: "Sequence[Segment]"

    @property
    def first_segment(self) -> "Segment | None":
        return self.segments[0] if self.segments else None

    @property
    def message_count(self) -> int:
        return sum(segment.records for segment in self.segments)


_Key = TypeVar("_Key", bound="Hashable")


class _Observation(NamedTuple):
    """The oldest message of a key, with the times of the first and the last observation that found it."""

    oldest: MessagePosition
    first_ms: int
    last_ms: int


class OldestMessageTimes(Generic[_Key]):
    """The oldest message of each key (such as a partition), with the time at which the message was first seen."""

    def __init__(self) -> None:
        self._observations: dict[_Key, _Observation] = {}

    def observe(self, key: _Key, oldest: MessagePosition, since_ms: int, now_ms: int) -> int:
        """Record that `oldest` has been a key's oldest message since `since_ms`.

        Return the earliest time since which it has been the oldest one, by this and earlier records.
        """
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
    """Finds stalls by periodic samples, so that they cost no time when a batch is sent or acknowledged."""

    def __init__(self) -> None:
        self._times: OldestMessageTimes[tuple[bytes, int]] = OldestMessageTimes()

    def sample(
        self, partitions: "Iterable[tuple[bytes, int, int | None, WaitingMessages]]", now_ms: int
    ) -> tuple[PartitionStall, ...]:
        """Return the oldest `MAX_LISTED_STALLS` stalls, sorted by age, the oldest first.

        `partitions` has (topic, partition, leader, waiting messages) of each partition.
        """
        stalled = []
        for topic, partition, node, waiting in partitions:
            if (segment := waiting.first_segment) is None:
                continue
            oldest = (segment.chunk, segment.generation, segment.run, segment.first)
            since_ms = self._times.observe((topic, partition), oldest, since_ms=now_ms, now_ms=now_ms)
            if now_ms - since_ms >= MIN_STALL_MS:
                stalled.append((since_ms, topic, partition, node, oldest, waiting))
        self._times.expire(now_ms)
        stalled.sort(key=lambda stall: stall[:3])  # by time, topic and partition
        return tuple(
            PartitionStall(topic, partition, node, waiting.message_count, since_ms, oldest)
            for since_ms, topic, partition, node, oldest, waiting in stalled[:MAX_LISTED_STALLS]
        )
