"""A topic in the router: its batch of AnyPartition messages, and the choice of their partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BatchingKind
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.router.cluster import TopicView
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

    IsOpen = Callable[[int, int], bool]  # True if messages for this topic and partition can go out

__all__ = ["Topic", "portions_of", "targets_of"]

PORTION_BYTES: Final = 64 * 1024
"""Bytes of a backlog for one partition at a time, so that all partitions share the backlog."""


class _Bound(NamedTuple):
    """The chunk that an input fills, and the partition of its messages."""

    chunk: int
    generation: int
    partition: int


class Topic:
    """One topic.  `parked` are AnyPartition messages for which no partition is open, in order.

    AnyPartition messages go to the available partitions in turn, so that each broker gets its share.  All messages of
    a chunk go to one partition, so that an error of another partition does not keep the chunk in use.  A batch that
    goes past the end of a chunk ends the turn, so large batches advance one partition each.  Combined topics also stay
    with a partition for the time of a batch, because many small batches cost more than a few larger ones.
    """

    def __init__(self, slab: Slab, number: int, name: bytes, rule: TopicBatching, rng: random.Random) -> None:
        self._slab = slab
        self.number = number
        self.name = name
        self.view: TopicView | None = None
        self.parked: list[Segment] = []
        self.parked_since_ms = 0
        self.parked_keyed: list[Segment] = []
        self.apply_config(rule)
        self._rng = rng
        self.alarm_ms = 0
        """The due time of the batch for which an alarm is set."""
        self.targets: list[int] = []
        """The partition for each index of a partition key; empty while no partition is available."""
        self._round: list[int] = []
        self._cursor = 0
        self._stay_until_ms = 0
        self._bound: dict[int, _Bound] = {}

    def apply_config(self, rule: TopicBatching) -> None:
        """Replace the batching rule; the batch must be empty."""
        self.rule = rule
        self.batch = PendingBatch(self._slab, rule.limits) if rule.kind is BatchingKind.PER_TOPIC else None

    def update_view(self, view: TopicView | None) -> None:
        """Apply new metadata; a changed view begins a new round of partitions."""
        if view == self.view:
            return
        self.view = view
        self._round = list(view.leaders) if view is not None else []
        self.targets = targets_of(view) if view is not None else []
        self._cursor = len(self._round)

    def targets_for(self, count: int) -> list[int] | None:
        """Return the partitions for keys modulo `count`; None if the topic has fewer.

        A topic that has grown keeps its first partitions, so an earlier lane keeps its partition.
        """
        return self.targets[:count] if 0 < count <= len(self.targets) else None

    def next_partition(self, segments: Sequence[Segment], is_open: IsOpen, now_ms: int) -> int | None:
        """Return the partition for AnyPartition messages; None if no available one is open."""
        chunk, generation, *_ = segments[-1]
        owner = self._slab.view[self._slab.chunk_at(chunk) + lay.CHUNK_OWNER]
        bound = self._bound.get(owner)
        if bound is not None and bound[:2] == (chunk, generation) and is_open(self.number, bound.partition):
            return bound.partition
        partition = self._in_turn(is_open, now_ms)
        if partition is not None:
            self._bound[owner] = _Bound(chunk, generation, partition)
        return partition

    def _in_turn(self, is_open: IsOpen, now_ms: int) -> int | None:
        if now_ms >= self._stay_until_ms:
            self._stay_until_ms = now_ms + self._stay_ms()
            self._advance()
        for step in range(len(self._round)):
            at = (self._cursor + step) % len(self._round)
            if is_open(self.number, self._round[at]):
                self._cursor = at
                return self._round[at]
        return None

    def _advance(self) -> None:
        """Advance, in another order each round, so that alternating sizes do not favour some partitions."""
        self._cursor += 1
        if self._cursor >= len(self._round):
            self._rng.shuffle(self._round)
            self._cursor = 0

    def advance_partition(self) -> None:
        """End the turn: the next messages go to the next partition."""
        self._stay_until_ms = 0

    def _stay_ms(self) -> int:
        return self.rule.limits.time_ms or 0 if self.rule.kind is BatchingKind.COMBINED else 0

    @property
    def holds_any(self) -> bool:
        return bool(self.parked or self.parked_keyed)


def targets_of(view: TopicView) -> list[int]:
    """Return the partition for each index of a partition key; empty while no partition is available."""
    designated = (view.designated(index) for index in range(len(view.partitions)))
    return [partition for partition in designated if partition is not None]


def portions_of(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Group segments, in order, into portions of about `PORTION_BYTES`."""
    portion: list[Segment] = []
    size = 0
    for segment in segments:
        portion.append(segment)
        size += segment.payload
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
