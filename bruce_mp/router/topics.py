"""The router's topics: their numbers, their batches of AnyPartition messages, and the choice of their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BatchingKind
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import name_of, read_run

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.kernels import RunHead
    from bruce_mp.router.cluster import ClusterView, TopicView
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

    IsOpen = Callable[[int, int], bool]  # True if messages for this topic and partition can go out

__all__ = ["Topic", "TopicRegistry", "portions_of", "targets_of"]

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
        self.is_plain = False
        """True if metadata shows the topic and no rate limit counts its messages; any change of the two resets it."""
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
        self.is_plain = False
        self._round = list(view.leaders) if view is not None else []
        self.targets = targets_of(view) if view is not None else []
        self._cursor = len(self._round)

    def targets_for(self, count: int) -> list[int] | None:
        """Return the partitions for keys modulo `count`; None if the topic has fewer.

        A topic that has grown keeps its first partitions, so an earlier lane keeps its partition.
        """
        return self.targets[:count] if 0 < count <= len(self.targets) else None

    def target_of_lane(self, index: int, count: int) -> int | None:
        """Return the partition of a lane whose keys are all `index` modulo `count`; None for a shared lane."""
        return self.targets[index] if 0 <= index < count <= len(self.targets) else None

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
            stays = self.rule.kind is BatchingKind.COMBINED
            self._stay_until_ms = now_ms + ((self.rule.limits.time_ms or 0) if stays else 0)
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

    @property
    def holds_any(self) -> bool:
        return bool(self.parked or self.parked_keyed)


class TopicRegistry:
    """The topics that the slab's table numbers, by number, and the cluster's last view."""

    def __init__(self, slab: Slab, tables: SlabTables, config: Config, rng: random.Random) -> None:
        self._slab = slab
        self._tables = tables
        self._table = tables.topics
        self._config = config
        self._rng = rng
        self.view: ClusterView | None = None
        self.numbered: dict[int, Topic] = {}

    def apply_config(self, config: Config) -> None:
        """Apply a reloaded config to topics that are numbered later."""
        self._config = config

    def leader_of(self, number: int, partition: int) -> int | None:
        """Return the broker that leads a partition; None if no broker is known to."""
        if self.view is None or not self._table.has(number):
            return None
        view = self._get(number, self._table.name_of(number)).view
        return None if view is None else view.leaders.get(partition)

    def name_in(self, segment: Segment, head: RunHead) -> bytes:
        """Return the topic name of a run.  Raises SlabError for a number that no topic has or had."""
        self.check(head.topic)
        if head.topic:
            return self._tables.name_of(head.topic)
        return name_of(self._slab, segment.chunk, segment.run, read_run(self._slab, segment.chunk, segment.run))

    def check(self, number: int) -> None:
        """Raise SlabError for a number that no topic has or had; 0 stands for a topic without a number."""
        if number and not (self._table.has(number) or self._table.was_freed(number)):
            raise SlabError(f"A run names topic number {number}, which no topic has.")

    def resolve(self, name: bytes, segment: Segment, head: RunHead) -> Topic | None:
        """Return the topic of a run, and store its number in the run; None if the cluster does not know it."""
        number = self.number(name)
        if number and number != head.topic:
            self._slab.words[(self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = number
        return self._get(number, name) if number else None

    def is_in_cluster(self, name: bytes) -> bool:
        """Return True if metadata shows the topic."""
        return self.view is not None and name in self.view.topics

    def number(self, name: bytes) -> int:
        """Number a topic and store the count of partitions for its keys; return 0 without the topic or room for it."""
        view = self.view.topics.get(name) if self.view is not None else None
        if view is None:
            return 0
        number = self._table.id_of(name)
        return self._table.add(name, view.spread(self._table.partitions_of(number) if number else 0))

    def targets_in_use(self, topic: Topic) -> list[int]:
        """Return the partitions for the keys of a topic, as many as inputs spread its keys over."""
        return topic.targets[: self._table.partitions_of(topic.number)]

    def _get(self, number: int, name: bytes) -> Topic:
        topic = self.numbered.get(number)
        if topic is None:
            rule = self._config.batching_for(name)
            topic = self.numbered[number] = Topic(self._slab, number, name, rule, self._rng)
            if self.view is not None:
                topic.update_view(self.view.topics.get(name))
        return topic


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
