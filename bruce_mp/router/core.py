"""The router's sans-IO core: it receives runs, chooses their partitions and returns parcels for dispatchers.

All messages that the router holds are ROUTED in the slab, so a new router finds them by a sweep.  The router binds each
message to a partition before it goes to a dispatcher, and the binding is final.  This keeps the order within a
partition through every reroute.  (The reference lets the dispatcher choose; then rerouted messages pass each other.)
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.discards.settlement import Discards
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.ipc.frames import FrameKind
from bruce_mp.pipeline.corruption import quarantine
from bruce_mp.router.assignments import Assignments
from bruce_mp.router.metadata_refresh import RefreshSchedule
from bruce_mp.router.missing_topics import MissingTopics
from bruce_mp.router.rate_limit import RateLimits
from bruce_mp.router.slab_tables import EVERY_MS, SlabTables
from bruce_mp.router.topics import Topic, portions_of
from bruce_mp.router.unknown_topics import UnknownTopics
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import sweep, sweep_filled
from bruce_mp.slab.runs import name_of, read_run
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import Target

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.kernels import RunHead
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.router.cluster import ClusterView, TopicView
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import Found
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Run, Segment

__all__ = ["Router"]

OVERHEAD: Final = 26
"""Bytes added to key and value where a message's size is limited: the overhead of message format 0."""
PATIENCE_MS: Final = 2_000
"""The longest wait of parked messages for dispatchers that are starting, so that each gets its share."""

_ROUTED: Final = (RunState.ROUTED, RunState.ROUTED_SENT)

_Key = tuple[int, int]


class Router:
    """The router's state and its reactions to events.  Times are in ms on one steady clock."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        config: Config,
        *,
        incarnation: int,
        reporter: DiscardReporter,
        rng: random.Random,
        tap: WireTap | None = None,
    ) -> None:
        self._slab = slab
        self._row = row
        self._config = config
        self._rng = rng
        self._mine = state_word(RunState.ROUTED, incarnation)
        self._mine_sent = state_word(RunState.ROUTED_SENT, incarnation)
        self._discards = Discards(slab, row, reporter)
        self._limits = RateLimits(slab, self._discards, config.rate_limit_for)
        self._tap = tap
        self._tables = SlabTables(slab)
        self._table = self._tables.topics
        self._view: ClusterView | None = None
        self._topics: dict[int, Topic] = {}
        self._early: list[Segment] = []
        self._dues: list[tuple[int, int]] = []
        self._plain_records = [0, 0]
        """Records of plain runs that are not counted yet: without and with a partition key."""
        self._draining = False
        self._missing = MissingTopics()
        self.refresh = RefreshSchedule()
        self.unknown = UnknownTopics(
            self._discards, self.refresh, lambda: self._table.room, autocreate=config.delivery.topic_autocreate
        )
        self.assignments = Assignments(
            slab,
            row,
            config.delivery,
            tables=self._tables,
            incarnation=incarnation,
            leader_of=self._leader_of,
            refresh=self.refresh,
            rng=rng,
        )

    def apply_config(self, config: Config, now_ms: int) -> None:
        """Apply a reloaded config.  Batches with a changed rule are sent first."""
        self._config = config
        self._limits.apply_config(config.rate_limit_for)
        self.unknown.apply_config(autocreate=config.delivery.topic_autocreate)
        self.assignments.apply_config(config.delivery)
        for topic in self._topics.values():
            rule = config.batching_for(topic.name)
            if rule != topic.rule:
                self.flush(topic.number, now_ms)
                topic.apply_config(rule)

    def _leader_of(self, topic: int, partition: int) -> int | None:
        if self._view is None or not self._table.has(topic):
            return None
        view = self._topic(topic, self._table.name_of(topic)).view
        return None if view is None else view.leaders.get(partition)

    # --- received messages -------------------------------------------------------------------------------------------

    def on_runs(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Claim and route the runs that an input announces as filled."""
        self._accept(kernels.claim(self._slab, segments, RunState.FILLED, self._mine), now_ms)

    def _accept(self, segments: Iterable[Segment], now_ms: int) -> None:
        if self._view is None:
            self._early += segments
            return
        segments = list(segments)
        plain: dict[_Key, list[Segment]] = {}
        for segment, head in zip(segments, kernels.read_headers(self._slab, segments), strict=True):
            place = self._plain_place(segment, head, now_ms)
            if place is not None:
                plain.setdefault(place, []).append(segment)
                continue
            self._send_plain(plain, now_ms)
            try:
                self._route(segment, now_ms)
            except SlabError as error:
                quarantine(self._row, error)
        self._send_plain(plain, now_ms)
        self._count_plain()

    def _plain_place(self, segment: Segment, head: RunHead | None, now_ms: int) -> _Key | None:
        """Return topic and partition of a run that needs no other decision; None for any other run."""
        topic = self._topics.get(head.topic) if head is not None else None
        if head is None or topic is None or topic.holds_any or topic.view is None or not self._is_plain(topic, head):
            return None
        keyed = head.flags & lay.FLAG_PARTITION_KEY
        if not keyed:
            partition = self._next_partition(topic, [segment], now_ms) if topic.batch is None else None
        elif 0 <= head.partition_index < head.partition_count <= len(topic.targets):
            partition = topic.targets[head.partition_index]
        else:
            partition = None
        if partition is None:
            return None
        self._plain_records[keyed] += segment.records
        return head.topic, partition

    def _next_partition(self, topic: Topic, segments: Sequence[Segment], now_ms: int) -> int | None:
        return topic.next_partition(segments, self.assignments.is_open, now_ms)

    def _is_plain(self, topic: Topic, head: RunHead) -> bool:
        is_tapped = self._tap is not None and self._tap.is_open
        is_long = head.largest + OVERHEAD > self._config.batching.message_max_bytes
        return not is_tapped and not is_long and not self._limits.has_limit(topic.number, topic.name)

    def _count_plain(self) -> None:
        self._row.add(Counter.RouteAnyPartitionMsg, self._plain_records[0])
        self._row.add(Counter.RoutePartitionKeyMsg, self._plain_records[lay.FLAG_PARTITION_KEY])
        self._plain_records = [0, 0]

    def _send_plain(self, plain: dict[_Key, list[Segment]], now_ms: int) -> None:
        """Send runs by topic and partition, with one parcel for each dispatcher."""
        for (number, partition), segments in self.assignments.queue(plain).items():
            try:
                self._send(self._topics[number], partition, segments, FrameKind.QUEUE, now_ms)
            except SlabError as error:
                quarantine(self._row, error)
        plain.clear()

    def _route(self, segment: Segment, now_ms: int) -> None:
        run = read_run(self._slab, segment.chunk, segment.run)
        self._check_topic(run.topic)
        topic = self._topic_of(segment, run)
        if topic is None:
            self._park_unknown(segment, run, now_ms)
            return
        is_long = run.largest + OVERHEAD > self._config.batching.message_max_bytes
        parts = self._without_long(topic, segment) if is_long else [segment]
        for part in self._limits.admit(topic.number, topic.name, parts, run, now_ms):
            self._route_to(topic, part, run, now_ms)

    def _check_topic(self, number: int) -> None:
        """Raise SlabError for a number that no topic has or had."""
        if number and not (self._table.has(number) or self._table.was_freed(number)):
            raise SlabError(f"A run names topic number {number}, which no topic has.")

    def _name_of(self, segment: Segment, run: Run) -> bytes:
        return self._tables.name_of(run.topic) if run.topic else name_of(self._slab, segment.chunk, segment.run, run)

    def _topic_of(self, segment: Segment, run: Run) -> Topic | None:
        """Return the topic of a run, and number the topic if needed; None if the cluster does not know it."""
        assert self._view is not None
        name = self._name_of(segment, run)
        view = self._view.topics.get(name)
        if view is None:
            return None
        number = self._number(name, view)
        if number and number != run.topic:
            self._slab.words[(self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = number
        return self._topic(number, name) if number else None

    def _number(self, name: bytes, view: TopicView) -> int:
        """Number a topic and store the count of partitions for its keys; return 0 if the table is full."""
        number = self._table.id_of(name)
        return self._table.add(name, view.spread(self._table.partitions_of(number) if number else 0))

    def _topic(self, number: int, name: bytes) -> Topic:
        topic = self._topics.get(number)
        if topic is None:
            rule = self._config.batching_for(name)
            topic = self._topics[number] = Topic(self._slab, number, name, rule, self._rng)
            if self._view is not None:
                topic.update_view(self._view.topics.get(name))
        return topic

    def _without_long(self, topic: Topic, segment: Segment) -> list[Segment]:
        """Discard the messages of a segment that are too long for Kafka, and return the others."""
        limit = self._config.batching.message_max_bytes - OVERHEAD
        parts = kernels.by_size(self._slab, segment, limit)
        too_long = [part for fits, part in parts if not fits]
        self._discards.settle(too_long, DiscardReason.LONG_MSG, topic.name, Counter.DiscardLongMsg)
        return [part for fits, part in parts if fits]

    def _route_to(self, topic: Topic, segment: Segment, run: Run, now_ms: int) -> None:
        if self._tap is not None and self._tap.is_open:
            self._tap.copy(Target.MSG_RECEIVE, topic.name, [segment])
        if run.flags & lay.FLAG_PARTITION_KEY:
            self._row.add(Counter.RoutePartitionKeyMsg, segment.records)
            self._route_keyed(topic, segment, run, now_ms)
            return
        self._row.add(Counter.RouteAnyPartitionMsg, segment.records)
        if topic.batch is None:
            self._send_any(topic, [segment], FrameKind.QUEUE, now_ms)
            return
        self._row.add(Counter.PerTopicBatchAnyPartition, segment.records)
        for batch in topic.batch.add(segment, now_ms):
            self._send_any(topic, batch, FrameKind.BATCH, now_ms)
        if self._draining:
            self._send_any(topic, topic.batch.flush(), FrameKind.BATCH, now_ms)
        elif topic.batch.due_ms is not None and topic.batch.due_ms != topic.alarm_ms:
            topic.alarm_ms = topic.batch.due_ms
            heappush(self._dues, (topic.alarm_ms, topic.number))

    def _route_keyed(self, topic: Topic, segment: Segment, run: Run, now_ms: int) -> None:
        if not topic.targets:
            topic.parked_keyed.append(segment)
            self.assignments.request_leader(now_ms, now_ms)
            return
        # Use the input's count, also after an increase: another count would mix lanes and lose their order.
        targets = topic.targets_for(run.partition_count) or topic.targets[: self._table.partitions_of(topic.number)]
        for partition, part in kernels.split_by_partition(self._slab, segment, targets):
            self._send(topic, partition, [part], FrameKind.QUEUE, now_ms)

    def _send_any(self, topic: Topic, segments: list[Segment], kind: FrameKind, now_ms: int) -> None:
        """Send AnyPartition messages to the next partition, behind the parked ones."""
        if not segments:
            return
        partition = None
        if not topic.parked:
            partition = self._next_partition(topic, segments, now_ms)
        if partition is None:
            if not topic.parked:
                topic.parked_since_ms = now_ms
            topic.parked += segments
            self.assignments.request_leader(now_ms, now_ms)
            return
        self._send(topic, partition, segments, kind, now_ms)

    def _send(self, topic: Topic, partition: int, segments: list[Segment], kind: FrameKind, now_ms: int) -> None:
        """Bind messages to a partition and send them to its dispatcher."""
        if not self.assignments.has_room(topic.number, partition):
            self._tables.report_full("partitions", "messages for further partitions are discarded.", now_ms)
            self.refresh.request(now_ms + EVERY_MS)
            reason, counter = DiscardReason.NO_AVAILABLE_PARTITIONS, Counter.DiscardNoAvailablePartition
            self._discards.settle(segments, reason, topic.name, counter)
            return
        kernels.bind_partition(self._slab, segments, [partition] * len(segments))
        self.assignments.send(topic.number, partition, segments, kind, now_ms)

    def leaderless(self) -> list[tuple[int, int]]:
        """Return the topics and partitions that have waiting messages and no leader."""
        parked = (topic for topic in self._topics.values() if topic.holds_any and topic.view is not None)
        topics = [(topic.number, ALL_PARTITIONS) for topic in parked if not topic.targets]
        return [*topics, *self.assignments.leaderless()]

    # --- due batches -------------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a batch may be due; None without a batch."""
        return self._dues[0][0] if self._dues else None

    def flush_due(self, now_ms: int) -> None:
        """Send the batches that are due."""
        while self._dues and self._dues[0][0] <= now_ms:
            topic = self._topics.get(heappop(self._dues)[1])
            batch = topic.batch if topic is not None else None
            if topic is not None and batch is not None and batch.due_ms is not None and batch.due_ms <= now_ms:
                self._send_any(topic, batch.flush(), FrameKind.BATCH, now_ms)

    def flush(self, number: int, now_ms: int) -> None:
        """Send the accumulated records of a topic, here and at the dispatchers."""
        topic = self._topics.get(number)
        if topic is not None and topic.batch is not None:
            self._send_any(topic, topic.batch.flush(), FrameKind.BATCH, now_ms)
        self.assignments.flush(number)

    def drain(self, now_ms: int) -> None:
        """Disable batching and send all accumulated records."""
        self._draining = True
        self.claim_filled(now_ms)
        for topic in self._topics.values():
            if topic.batch is not None:
                self._send_any(topic, topic.batch.flush(), FrameKind.BATCH, now_ms)

    # --- unknown topics -----------------------------------------------------------------------------------------------

    def _park_unknown(self, segment: Segment, run: Run, now_ms: int) -> None:
        self.unknown.park(self._name_of(segment, run), segment, now_ms)

    def _can_number(self, name: bytes, now_ms: int) -> bool:
        """Return True if the cluster knows the topic and the slab's table has room for it."""
        assert self._view is not None
        view = self._view.topics.get(name)
        if view is None:
            return False
        number = self._number(name, view)
        if not number:
            self._tables.report_full("topics", "messages for further topics are discarded.", now_ms)
        return number > 0

    # --- metadata ----------------------------------------------------------------------------------------------------

    @property
    def names_to_look_up(self) -> list[bytes]:
        """Needed topics that metadata does not show; brokers may hide them from the daemon's user."""
        return list(dict.fromkeys([*self.unknown.names_to_look_up, *self._missing.missing]))

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> bool:
        """Apply metadata of a fetch that began at `started_ms`; return True if it differs from the previous view."""
        view = self._missing.complete(view, self._table.known(), now_ms)
        changed = view != self._view
        self._view = view
        for topic in list(self._topics.values()):
            self._renew(topic, view.topics.get(topic.name), now_ms)
        for number in self._tables.free(view.topics, self.assignments.topics, now_ms):
            self._topics.pop(number, None)
            self._limits.remove(number)
        self.assignments.on_metadata(view, started_ms, now_ms)
        found = self.unknown.settle(
            lambda name: self._can_number(name, now_ms), started_ms, now_ms, forbidden=view.forbidden
        )
        self._accept(found, now_ms)
        early, self._early = self._early, []
        self._accept(early, now_ms)
        self._unpark(now_ms)
        return changed

    def _renew(self, topic: Topic, view: TopicView | None, now_ms: int) -> None:
        topic.update_view(view)
        if view is not None:
            self._number(topic.name, view)
            return
        gone = topic.parked + topic.parked_keyed + (topic.batch.flush() if topic.batch is not None else [])
        topic.parked, topic.parked_keyed = [], []
        gone += self.assignments.remove_topic(topic.number, now_ms)
        self._discards.settle(gone, DiscardReason.BAD_TOPIC, topic.name, Counter.DiscardBadTopicOnReroute)

    def _unpark(self, now_ms: int) -> None:
        for topic in self._topics.values():
            if topic.holds_any and topic.view is not None:
                self._unpark_keyed(topic, now_ms)
                self._unpark_any(topic, now_ms)

    def _unpark_keyed(self, topic: Topic, now_ms: int) -> None:
        keyed, topic.parked_keyed = topic.parked_keyed, []
        for segment in keyed:
            try:
                self._route_keyed(topic, segment, read_run(self._slab, segment.chunk, segment.run), now_ms)
            except SlabError as error:
                quarantine(self._row, error)

    def _unpark_any(self, topic: Topic, now_ms: int) -> None:
        if self._awaits_dispatchers(topic, now_ms):
            return
        parked, topic.parked = topic.parked, []
        for portion in portions_of(parked):
            topic.advance_partition()
            self._send_any(topic, portion, FrameKind.HELD, now_ms)

    def _awaits_dispatchers(self, topic: Topic, now_ms: int) -> bool:
        until = topic.parked_since_ms + PATIENCE_MS
        if now_ms >= until or not any(self.assignments.is_starting(topic.number, number) for number in topic.targets):
            return False
        self.refresh.request(until)
        return True

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Process one frame of a dispatcher."""
        self.assignments.on_parcels(parcels, now_ms)
        self._unpark(now_ms)

    # --- after a death -----------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> None:
        """Take over the previous router's records and a snapshot of the runs that inputs handed over."""
        held = [found for found in sweep(self._slab, _ROUTED) if found.word not in {self._mine, self._mine_sent}]
        for found in sorted([*held, *sweep_filled(self._slab)], key=lambda item: item.arrival):
            try:
                self._adopt(found, now_ms)
            except SlabError as error:
                quarantine(self._row, error)
        self.assignments.recover()

    def _adopt(self, found: Found, now_ms: int) -> None:
        """Claim a segment: add a bound one to its route, and route any other as if the input had sent it."""
        sent = found.state is RunState.ROUTED_SENT
        taken = kernels.claim(self._slab, [found.segment], found.word, self._mine_sent if sent else self._mine)
        self._check_topic(found.topic)
        if found.topic and found.partition >= 0:
            self.assignments.adopt(found.topic, found.partition, taken, sent=sent)
        else:
            self._accept(taken, now_ms)

    def claim_filled(self, now_ms: int) -> None:
        """Claim the runs of an input that died before its doorbell arrived."""
        self.on_runs([found.segment for found in sweep_filled(self._slab)], now_ms)
