"""Stalls: a partition is stalled if its oldest waiting message stays the same for too long.

Kafka acknowledges the messages of a partition in order, so a partition's oldest waiting message changes with each
acknowledgment.  A message waits from the time at which it may be sent, so delays by batching do not count.  The
position of a message in the slab identifies the message even after another process has taken it over, so a stall does
not end when the router and dispatchers hand messages to each other.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from bruce_mp.slab.runs import Segment

__all__ = ["PartitionStall", "StallSampler", "StallStarts", "WaitingSegments"]

MIN_STALL_MS: Final = 500
"""The shortest reported stall. It is half the interval of the samples, so two samples with the same message suffice."""
REMEMBERED_MS: Final = 10_000
"""How long a message is remembered after its last sample, because it may be on its way to another process."""
MAX_LISTED_STALLS: Final = 1000
"""The maximum number of stalls in a report, so that the report fits into a frame."""

MessagePosition = tuple[int, int, int, int]
"""The position of a message in the slab: chunk, generation of the chunk, offset of the run, offset of the record."""


class PartitionStall(msgspec.Struct, frozen=True):
    """A stalled partition, and the node number of the broker that leads it (None if no broker does).

    `partition` is `ALL_PARTITIONS` for messages that have no partition yet; `topic` is empty before the first metadata.
    `message_count` is the number of waiting messages. `since_ms` is the time on the steady clock at which a sample
    first found `oldest_message`; the message may have arrived earlier.
    """

    topic: bytes
    partition: int
    node: int | None
    message_count: int
    since_ms: int
    oldest_message: MessagePosition


class WaitingMessages(Protocol):
    """The messages of a partition that may be sent, in order: a queue of a dispatcher or a route of the router."""

    @property
    def first_segment(self) -> "Segment | None":
        """The segment that begins with the oldest message, or None if no message waits."""

    @property
    def message_count(self) -> int: ...


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
    """The oldest message of a key, and the times of the first and the last observation that found this message."""

    oldest_message: MessagePosition
    first_ms: int
    last_ms: int


class StallStarts(Generic[_Key]):
    """The start of a possible stall of each key, such as a partition: when its oldest message was first seen."""

    def __init__(self) -> None:
        self._observations: dict[_Key, _Observation] = {}

    def observe(self, key: _Key, oldest_message: MessagePosition, since_ms: int, now_ms: int) -> int:
        """Record that a key's oldest message has been the same since `since_ms`.

        Return the earliest `since_ms` of all calls with this key and message.
        """
        before = self._observations.get(key)
        if before is not None and before.oldest_message == oldest_message:
            since_ms = min(since_ms, before.first_ms)
        self._observations[key] = _Observation(oldest_message, since_ms, now_ms)
        return since_ms

    def expire(self, now_ms: int) -> None:
        """Remove the messages that were not observed for `REMEMBERED_MS`."""
        self._observations = {
            key: observation
            for key, observation in self._observations.items()
            if now_ms - observation.last_ms < REMEMBERED_MS
        }


class StallSampler:
    """Finds stalls by a sample each second, so that sending and acknowledging a batch cost no extra time."""

    def __init__(self) -> None:
        self._starts: StallStarts[tuple[bytes, int]] = StallStarts()

    def sample(
        self, partitions: "Iterable[tuple[bytes, int, int | None, WaitingMessages]]", now_ms: int
    ) -> tuple[PartitionStall, ...]:
        """Return the `MAX_LISTED_STALLS` longest stalls, the longest first.

        `partitions` has (topic, partition, node number of the leader, waiting messages) of each partition.
        """
        stalled = []
        for topic, partition, node, waiting in partitions:
            if (segment := waiting.first_segment) is None:
                continue
            oldest_message = (segment.chunk, segment.generation, segment.run, segment.first)
            since_ms = self._starts.observe((topic, partition), oldest_message, since_ms=now_ms, now_ms=now_ms)
            if now_ms - since_ms >= MIN_STALL_MS:
                stalled.append((since_ms, topic, partition, node, oldest_message, waiting))
        self._starts.expire(now_ms)
        stalled.sort(key=lambda stall: stall[:3])  # by time, topic and partition
        return tuple(
            PartitionStall(topic, partition, node, waiting.message_count, since_ms, oldest_message)
            for since_ms, topic, partition, node, oldest_message, waiting in stalled[:MAX_LISTED_STALLS]
        )
