"""The router's topics: numbers in the slab's topic table, batches of AnyPartition messages, and choice of partitions.

A partition is *open* while messages can be sent to the dispatcher of its leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BatchingKind
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.pending_batch import PendingBatch
from bruce_mp.router.broker_turns import TURN_MS
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import name_of, read_run

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.kernels import ChosenPartition, RunHeader
    from bruce_mp.router.broker_turns import BrokerTurns, LeaderCounts
    from bruce_mp.router.cluster import ClusterView, TopicView
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

    IsOpen = Callable[[int, int], bool]  # returns True if the partition of (topic number, partition) is open

__all__ = ["Topic", "TopicRegistry", "portions_of"]

_CHUNK_STAY_MS: Final = TURN_MS
"""The time after which further messages of a chunk go to another partition."""
PORTION_BYTES: Final = 64 * 1024
"""The size at which a portion of parked messages is complete.  Each portion goes to the next partition."""


class _ChunkPartition(NamedTuple):
    """The partition that gets the AnyPartition messages of a chunk or span until `until_ms` on the steady clock."""

    chunk: int
    generation: int
    partition: int
    until_ms: int

    def is_valid_for(self, segment: Segment, now_ms: int) -> bool:
        return (segment.chunk, segment.generation) == (self.chunk, self.generation) and now_ms < self.until_ms


class Topic:
    """A topic's metadata, batch, parked messages and choice of partitions.

    AnyPartition messages go to the open partitions in rotation, so that each broker gets a part.  The messages of a
    chunk go to one partition, so that an error of a partition keeps few chunks in use.  If a chunk fills slowly, its
    further messages go to another partition after `_CHUNK_STAY_MS`.  A batch that ends in a new chunk goes to the next
    partition.

    Combined topics share a batch at each broker.  They also keep a partition for the duration of a batch, because many
    small record batches cost more than a few large ones.  While traffic is small, a combined topic sends to one broker
    for the time of a turn (`broker_turns`); if `turns` is None, it always uses the rotation.
    """

    def __init__(
        self,
        slab: Slab,
        number: int,
        name: bytes,
        rule: TopicBatching,
        rng: random.Random,
        *,
        keys_wait: bool = False,
        turns: BrokerTurns | None = None,
    ) -> None:
        self._slab = slab
        self._turns = turns
        self.number = number
        self.name = name
        self.view: TopicView | None = None
        self.is_plain = False
        """True if metadata shows the topic and the topic has no rate limit.  `RunRouter._admit` sets it; a change of
        metadata or config clears it."""
        self.parked_unkeyed: list[Segment] = []
        """AnyPartition messages that arrived while no partition was open, in order."""
        self.parked_since_ms = 0
        """The time at which `parked_unkeyed` got its first segment."""
        self.parked_keyed: list[Segment] = []
        """PartitionKey messages that arrived while `key_partitions` was empty, in order."""
        self.keys_wait = keys_wait
        """True if PartitionKey messages wait for a leader of their partition; False if another partition gets them."""
        self.apply_config(rule)
        self._rng = rng
        self.scheduled_ms = 0
        """The due time in the topic's newest entry of `RunRouter`'s heap of pending batches."""
        self.key_partitions: list[int] = []
        """The partition for each key index (key modulo number of partitions).  It is empty if no partition has a leader
        or metadata lacks some of the partitions."""
        self._rotation: list[int] = []
        """The partitions with a leader, in the order in which the rotation chooses them."""
        self._chosen_index = 0
        """The index in `_rotation` of the last partition that the rotation chose."""
        self._stays_until_ms = 0
        """The time until which the rotation chooses this partition again."""
        self._partitions_by_leader: dict[int, list[int]] = {}
        """The partitions that each broker leads, least recently chosen by a turn of brokers first."""
        self._leader_counts: LeaderCounts = ()
        self._chosen_partition = 0
        """The last partition that a turn of brokers chose."""
        self._chosen_turn = -1
        """The number of the turn that chose `_chosen_partition`; -1 if no turn has chosen since metadata changed."""
        self._span_until_ms = 0
        """The time until which spans may keep their partitions, even after the end of a turn."""
        self._shares_backlog = False
        """True if the next choice is for a portion of parked messages; then the rotation chooses."""
        self._chunk_partitions: dict[int, _ChunkPartition] = {}
        """The partition of each input's newest chunk, by the chunk's owner (the number of the input's process row)."""

    def apply_config(self, rule: TopicBatching) -> None:
        """Replace the batching rule; `batch` must be empty."""
        self.rule = rule
        self._turns_of_rule = self._turns if rule.kind is BatchingKind.COMBINED else None
        self.batch: PendingBatch[Segment] | None = None
        if rule.kind is BatchingKind.PER_TOPIC:
            self.batch = PendingBatch(self._slab, rule.limits)

    def update_view(self, view: TopicView | None) -> None:
        """Apply new metadata; a changed view restarts the rotation."""
        if view == self.view:
            return
        self.view = view
        self.is_plain = False
        self._update_key_partitions()
        leaders = view.leaders if view is not None else {}
        self._rotation = list(leaders)
        self._chosen_index, self._stays_until_ms = len(leaders), 0  # past the end: the next choice shuffles
        self._chosen_turn, self._partitions_by_leader = -1, {}
        for partition, leader in leaders.items():
            self._partitions_by_leader.setdefault(leader, []).append(partition)
        led = self._partitions_by_leader.items()
        self._leader_counts = tuple(sorted((leader, len(partitions)) for leader, partitions in led))

    def apply_keys_wait(self, *, keys_wait: bool) -> None:
        self.keys_wait = keys_wait
        self._update_key_partitions()

    def _update_key_partitions(self) -> None:
        self.key_partitions = [] if self.view is None else self.view.key_partitions(keys_wait=self.keys_wait)

    def key_partitions_for(self, count: int) -> list[int] | None:
        """Return the partitions for keys modulo `count`; None if the topic has fewer than `count` partitions.

        New partitions come last, so the partitions of a smaller `count` do not change.
        """
        return self.key_partitions[:count] if 0 < count <= len(self.key_partitions) else None

    def partition_of_lane(self, index: int, count: int) -> int | None:
        """Return the partition for a run of a lane in which all keys modulo `count` are `index`.

        Return None if the lane mixes keys (`index` is negative), or the topic has fewer than `count` partitions.
        """
        return self.key_partitions[index] if 0 <= index < count <= len(self.key_partitions) else None

    def follows_turns(self, now_ms: int) -> bool:
        """Return True if, while traffic is small, turns of brokers choose the partition of each run outside of spans.

        Until a turn has chosen, a span may keep a partition that it got while traffic was large.
        """
        return self._turns_of_rule is not None and now_ms >= self._span_until_ms and not self._shares_backlog

    def has_chosen(self, turn: int) -> bool:
        """Return True if `turn` has chosen a partition; a topic that `follows_turns` uses it until the turn ends."""
        return turn == self._chosen_turn

    def choose_in_turn(
        self, turn: int, turns: BrokerTurns, open_partitions: Mapping[tuple[int, int], ChosenPartition]
    ) -> ChosenPartition | None:
        """Choose the partition of a topic that `follows_turns`, as `next_partition` does for the first run in a turn.

        Return None if the turn has chosen already, or if the preferred partition is not in `open_partitions`.
        """
        if turn == self._chosen_turn:
            return None
        partitions = self._partitions_by_leader[turns.order_of(self._leader_counts)[0]]
        choice = open_partitions.get((self.number, partitions[0]))
        if choice is not None:
            partitions.append(partitions.pop(0))
            self._chosen_turn, self._chosen_partition = turn, choice.partition
        return choice

    def next_partition(self, segments: Sequence[Segment], is_open: IsOpen, now_ms: int) -> int | None:
        """Return the partition for AnyPartition messages; None if no partition is open.

        The chunk of the last segment keeps its partition for a time; then the turn of brokers or the rotation chooses
        another partition.  In a turn, only spans have entries in `_chunk_partitions`, because all single chunks get the
        same partition.
        """
        turns = None if self._shares_backlog else self._turns_of_rule
        turn = None if turns is None else turns.current_turn
        spans_have_ended = now_ms >= self._span_until_ms
        if turn == self._chosen_turn and spans_have_ended and is_open(self.number, self._chosen_partition):
            return self._chosen_partition  # the usual case in a turn
        last = segments[-1]
        chunk_offset = self._slab.chunk_at(last.chunk)
        chunk_count = self._slab.words[(chunk_offset + lay.CHUNK_SPAN) >> 2]  # more than 1 in a span
        if turns is not None and turn is not None and chunk_count == 1:
            return self._partition_of_turn(turn, turns, is_open)
        owner = self._slab.view[chunk_offset + lay.CHUNK_OWNER]
        kept = self._chunk_partitions.get(owner)
        if kept is not None and kept.is_valid_for(last, now_ms) and is_open(self.number, kept.partition):
            return kept.partition
        if turns is None or turn is None:
            partition = self._next_open_partition(is_open, now_ms)
            until_ms = now_ms + _CHUNK_STAY_MS * chunk_count
        else:
            partition = self._partition_of_turn(turn, turns, is_open)
            turn_end_ms = (turn + 1) * turns.turn_ms
            # For its first chunk the span needs no extra time: all chunks keep their partition until the turn ends.
            until_ms = turn_end_ms + _CHUNK_STAY_MS * (chunk_count - 1)
            self._span_until_ms = max(self._span_until_ms, until_ms)
        if partition is not None:
            self._chunk_partitions[owner] = _ChunkPartition(last.chunk, last.generation, partition, until_ms)
        return partition

    def _partition_of_turn(self, turn: int, turns: BrokerTurns, is_open: IsOpen) -> int | None:
        """Return an open partition of the broker that the topic prefers in this turn; None if no partition is open."""
        if turn == self._chosen_turn and is_open(self.number, self._chosen_partition):
            return self._chosen_partition
        for broker in turns.order_of(self._leader_counts):
            partitions = self._partitions_by_leader[broker]
            for partition in partitions:
                if is_open(self.number, partition):
                    partitions.remove(partition)
                    partitions.append(partition)
                    self._chosen_turn, self._chosen_partition = turn, partition
                    return partition
        return None

    def _next_open_partition(self, is_open: IsOpen, now_ms: int) -> int | None:
        """Return the next open partition of the rotation; None if no partition is open."""
        self._shares_backlog = False
        if now_ms >= self._stays_until_ms:
            batch_ms = self.rule.limits.time_ms if self.rule.kind is BatchingKind.COMBINED else None
            self._stays_until_ms = now_ms + (batch_ms or 0)
            self._advance_rotation()
        for step in range(len(self._rotation)):
            index = (self._chosen_index + step) % len(self._rotation)
            if is_open(self.number, self._rotation[index]):
                self._chosen_index = index
                return self._rotation[index]
        return None

    def _advance_rotation(self) -> None:
        """Advance the rotation; shuffle it at its end, so that alternating batch sizes favor no partition."""
        self._chosen_index += 1
        if self._chosen_index >= len(self._rotation):
            self._rng.shuffle(self._rotation)
            self._chosen_index = 0

    def advance_partition(self) -> None:
        """Let the rotation, not a turn of brokers, choose the next partition; a chunk may still keep its partition."""
        self._stays_until_ms = 0
        self._shares_backlog = True

    @property
    def has_parked(self) -> bool:
        return bool(self.parked_unkeyed or self.parked_keyed)


class TopicRegistry:
    """The topics that have a number in the slab's topic table, and the latest metadata."""

    def __init__(self, slab: Slab, tables: SlabTables, config: Config, rng: random.Random, turns: BrokerTurns) -> None:
        self._slab = slab
        self._tables = tables
        self._topic_table = tables.topics
        self._config = config
        self._rng = rng
        self._turns = turns
        self.view: ClusterView | None = None
        self.topic_ids: Mapping[bytes, bytes] = {}
        """Kafka's ids of the topics in the latest metadata, by name."""
        self.by_number: dict[int, Topic] = {}
        """By topic number; a topic is added when it is first needed."""

    def apply_config(self, config: Config) -> None:
        """Store a reloaded config for topics that are added later; `RunRouter` applies it to those in `by_number`."""
        self._config = config

    def leaders_of(self, number: int) -> Mapping[int, int]:
        """Return the id of the broker that leads each partition with a known leader."""
        if self.view is None or not self._topic_table.has(number):
            return {}
        view = self._get_or_create(number, self._topic_table.name_of(number)).view
        return {} if view is None else view.leaders

    def name_of_run(self, segment: Segment, header: RunHeader) -> bytes:
        """Return the topic name of a run.  Raise SlabError for a number that the topic table never assigned."""
        self.check_number(header.topic)
        if header.topic:
            return self._tables.name_of(header.topic)
        return name_of(self._slab, segment.chunk, segment.run, read_run(self._slab, segment.chunk, segment.run))

    def check_number(self, number: int) -> None:
        """Raise SlabError for a number that the topic table never assigned; 0 (a topic without a number) is valid."""
        if number and not (self._topic_table.has(number) or self._topic_table.was_freed(number)):
            raise SlabError(f"A run names topic number {number}, which the topic table never assigned.")

    def resolve(self, name: bytes, segment: Segment, header: RunHeader) -> Topic | None:
        """Return the topic of a run, and store the topic's number in the run's header.

        Return None if the topic cannot get a number (see `assign_number`).
        """
        number = self.assign_number(name)
        if number and number != header.topic:
            self._slab.words[(self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = number
        return self._get_or_create(number, name) if number else None

    def is_in_cluster(self, name: bytes) -> bool:
        return self.view is not None and name in self.view.topics

    def assign_number(self, name: bytes) -> int:
        """Return a topic's number in the slab's topic table; assign one if the topic has none.

        Also store in the table the number of partitions over which inputs spread the topic's keys.  Return 0 if
        metadata does not show the topic or the table is full.
        """
        view = self.view.topics.get(name) if self.view is not None else None
        if view is None:
            return 0
        number = self._topic_table.number_of(name)
        known_count = self._topic_table.partition_count_of(number) if number else 0
        count = view.key_partition_count(known_count, keys_wait=self._config.keys_wait_for(name))
        assigned = self._topic_table.add(name, count)
        if not number:  # store the id now, because the topic may be created again before the next metadata
            self._topic_table.store_topic_id(name, self.topic_ids.get(name, b""))
        return assigned

    def key_partitions_in_use(self, topic: Topic) -> list[int]:
        """Return the partitions over which inputs spread keys now: as many as the topic table has for the topic."""
        return topic.key_partitions[: self._topic_table.partition_count_of(topic.number)]

    def _get_or_create(self, number: int, name: bytes) -> Topic:
        topic = self.by_number.get(number)
        if topic is None:
            rule = self._config.batching_for(name)
            keys_wait = self._config.keys_wait_for(name)
            topic = Topic(self._slab, number, name, rule, self._rng, keys_wait=keys_wait, turns=self._turns)
            self.by_number[number] = topic
            if self.view is not None:
                topic.update_view(self.view.topics.get(name))
        return topic


def portions_of(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Group segments in order; each portion except the last has at least `PORTION_BYTES`."""
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
