"""Routing of runs: the router finds the topic of a run, applies limits, chooses partitions and sends to dispatchers.

A run is *plain* if its topic is plain (`Topic.is_plain`), all messages of the run are within `message_max_bytes`, and
message debugging is off.  Only runs that are not plain pass through `_admit`.

A partition is *open* while messages can be sent to the dispatcher of its leader.  The router *parks* messages while
their topic is unknown or no partition is open for them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NoReturn

from bruce_mp import kernels
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.ipc.frames import ParcelKind
from bruce_mp.pipeline.corruption import quarantine, without_damaged
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD
from bruce_mp.router.rate_limit import RateLimits
from bruce_mp.router.slab_tables import SWEEP_INTERVAL_MS
from bruce_mp.router.topics import portions_of
from bruce_mp.slab import layout as lay
from bruce_mp.slab.recovery import inspect_segment
from bruce_mp.slab.runs import arrived_ms, raise_damage, read_run
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import CopyTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.discards.settlement import Discards
    from bruce_mp.kernels import ChosenPartition, RunHeader
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.pipeline.pending_batch import PendingBatch
    from bruce_mp.router.assignments import Assignments
    from bruce_mp.router.broker_turns import BrokerTurns
    from bruce_mp.router.metadata_refresh import FetchSchedule
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.router.topics import Topic, TopicRegistry
    from bruce_mp.router.unknown_topics import UnknownTopics
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import FoundSegment
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["RunRouter"]

DISPATCHER_START_WAIT_MS: Final = 2_000
"""The longest time for which parked messages wait for dispatchers to start, so that each dispatcher gets a part."""
_NO_RUN_IS_PLAIN: Final = -1
"""A value of `max_plain_payload` below the payload of every message."""
_HAS_KEY: Final = lay.FLAG_PARTITION_KEY
_PAYLOAD_OF: Final = attrgetter("payload")

_TopicPartition = tuple[int, int]  # topic number, partition
_SegmentsByPartition = dict[_TopicPartition, list["Segment"]]


class _RoutedSegments:
    """Collects the segments that one call routes, in sending order, so that each dispatcher gets them in one parcel.

    Segments for partitions that are known to be open are in the outbox's queues instead.  `now_ms` is the time of the
    call.
    """

    __slots__ = ("keyed_count", "max_plain_payload", "now_ms", "queued", "unkeyed_count")

    def __init__(self, now_ms: int, max_plain_payload: int = _NO_RUN_IS_PLAIN) -> None:
        self.now_ms = now_ms
        self.max_plain_payload = max_plain_payload
        """The maximum payload of a message in a plain run, in bytes."""
        self.unkeyed_count = 0
        """The number of routed records without a partition key."""
        self.keyed_count = 0
        """The number of routed records with a partition key.  `RunRouter.unpark` ignores both numbers, because its
        records were counted when they were parked."""
        self.queued: _SegmentsByPartition = {}
        """Segments to send in QUEUE parcels, of partitions that are not known to be open."""


class RunRouter:
    """Routes runs, and holds messages that wait for metadata, for the end of a batch or for an open partition."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        config: Config,
        *,
        topics: TopicRegistry,
        tables: SlabTables,
        unknown: UnknownTopics,
        assignments: Assignments,
        fetch_schedule: FetchSchedule,
        discards: Discards,
        turns: BrokerTurns,
        tap: WireTap,
    ) -> None:
        self._slab = slab
        self._row = row
        self._topics = topics
        self._tables = tables
        self._unknown = unknown
        self._assignments = assignments
        self._fetch_schedule = fetch_schedule
        self._discards = discards
        self._turns = turns
        self._tap = tap
        self.rate_limits = RateLimits(slab, discards, config.rate_limit_for)
        self._max_payload = _max_payload_of(config)
        self._by_number = topics.by_number
        self._is_open = assignments.is_open
        self._open_partitions = assignments.open_partitions
        self._choices, self._choosers = assignments.choices, assignments.choosers
        self._turn_of_choices: int | None = None
        """The turn of brokers in which `_choices` were made; None while traffic is large."""
        self._awaiting_metadata: list[Segment] = []
        self._maybe_parked: dict[int, Topic] = {}
        """By number: the topics that have, or had, parked messages."""
        self._due_heap: list[tuple[int, int]] = []
        """(due time, topic number) of pending batches; an entry stays until its due time even if the batch was sent."""
        self.is_draining = False
        """True if batching is disabled, because the daemon is about to stop."""

    def apply_config(self, config: Config, now_ms: int) -> None:
        """Apply a reloaded config; before that, send the pending batches of topics with a changed batching rule."""
        self._max_payload = _max_payload_of(config)
        self.rate_limits.apply_config(config.rate_limit_for)
        self._choices.clear()
        self._choosers.clear()
        self._turns.apply_config(config.batching)
        for topic in self._by_number.values():
            topic.is_plain = False  # `_admit` determines it again
            topic.apply_keys_wait(keys_wait=config.keys_wait_for(topic.name))
            rule = config.batching_for(topic.name)
            if rule != topic.rule:
                self.flush_topic(topic.number, now_ms)
                topic.apply_config(rule)

    # --- runs --------------------------------------------------------------------------------------------------------

    def route(self, segments: list[Segment], now_ms: int) -> None:
        """Route claimed runs in order; before the first metadata, hold them instead."""
        if self._topics.view is None:
            self._awaiting_metadata += segments
            return
        self._turns.record_routed(sum(map(_PAYLOAD_OF, segments)), now_ms)
        if self._turns.current_turn != self._turn_of_choices:
            self._turn_of_choices = self._turns.current_turn
            self._choices.clear()
        max_plain_payload = _NO_RUN_IS_PLAIN if self._tap.is_active else self._max_payload
        others, queued_count = kernels.queue_chosen(
            self._slab, segments, self._choices, self._choose, max_plain_payload, known=self._by_number
        )
        routed = _RoutedSegments(now_ms, max_plain_payload)
        for segment, header in others:
            try:
                self._route(segment, header, routed)
            except SlabError as error:
                quarantine(self._row, error)
        self._send(routed)
        if queued_count or routed.unkeyed_count:
            self._row.add(Counter.RouteAnyPartitionMsg, queued_count + routed.unkeyed_count)
        if routed.keyed_count:
            self._row.add(Counter.RoutePartitionKeyMsg, routed.keyed_count)

    def route_awaiting_metadata(self, now_ms: int) -> None:
        waiting, self._awaiting_metadata = self._awaiting_metadata, []
        self.route(waiting, now_ms)

    def _route(self, segment: Segment, header: RunHeader | None, routed: _RoutedSegments) -> None:
        if header is None:
            _raise_damaged(self._slab, segment)
        topic = self._by_number.get(header.topic)
        if topic is not None and topic.is_plain and header.largest_payload <= routed.max_plain_payload:
            self._route_admitted(topic, segment, header, routed)
            return
        name = self._topics.name_of_run(segment, header)
        topic = self._topics.resolve(name, segment, header)
        if topic is None:
            self._unknown.park(name, segment, routed.now_ms)
            return
        for part in self._admit(topic, segment, header, routed.now_ms):
            self._route_admitted(topic, part, header, routed)

    def _admit(self, topic: Topic, segment: Segment, header: RunHeader, now_ms: int) -> Sequence[Segment]:
        """Discard messages that are too long or over the rate limit; copy the others for debugging and return them."""
        topic.is_plain = not self.rate_limits.has_limit(
            topic.number, topic.name
        )  # if True, its next runs skip `_admit`
        parts = [segment] if header.largest_payload <= self._max_payload else self._discard_long(topic, segment)
        admitted = self.rate_limits.admit(topic.number, topic.name, parts, header.arrived_ms, now_ms)
        if self._tap.is_active:
            self._tap.copy(CopyTarget.MSG_RECEIVE, topic.name, admitted)
        return admitted

    def _discard_long(self, topic: Topic, segment: Segment) -> list[Segment]:
        """Discard the messages of a segment that exceed Kafka's size limit, and return the others."""
        parts = kernels.split_by_size(self._slab, segment, self._max_payload)
        too_long = [part for fits, part in parts if not fits]
        self._discards.settle(too_long, DiscardReason.LONG_MSG, topic.name, Counter.DiscardLongMsg)
        return [part for fits, part in parts if fits]

    # --- partitions --------------------------------------------------------------------------------------------------

    def _route_admitted(self, topic: Topic, segment: Segment, header: RunHeader, routed: _RoutedSegments) -> None:
        """Count an admitted segment, and queue it for a partition, add it to its topic's batch, or park it."""
        if header.flags & _HAS_KEY:
            routed.keyed_count += segment.records
            partition = topic.partition_of_lane(header.partition_index, header.partition_count)
            if partition is None:  # the run has keys of several partitions, or the topic has fewer than the input knew
                self._split_by_keys(topic, segment, header.partition_count, routed)
                return
        else:
            routed.unkeyed_count += segment.records
            if topic.batch is not None:
                self._add_to_batch(topic, topic.batch, segment, routed)
                return
            partition = self._next_partition(topic, [segment], routed.now_ms)
            self._learn_choice(topic, partition, routed.now_ms)
        if partition is not None:
            self._queue(topic.number, partition, segment, routed)

    def _learn_choice(self, topic: Topic, partition: int | None, now_ms: int) -> None:
        """Update `_choosers` and `_choices` after `_next_partition` has returned this partition for a run."""
        turn, number = self._turn_of_choices, topic.number
        if turn is None:
            return
        if partition is None or not topic.is_plain or not topic.follows_turns(now_ms):
            self._choosers.pop(number, None)
            self._choices.pop(number, None)
            return
        self._choosers[number] = topic
        choice = self._open_partitions.get((number, partition))
        if choice is not None and topic.has_chosen(turn):
            self._choices[number] = choice

    def _choose(self, number: int) -> ChosenPartition | None:
        """Choose the partition that gets the AnyPartition messages of a topic number until the turn of brokers ends.

        Return None if the topic is not in `_choosers`, the traffic is large, or the choice is not a usual one.
        """
        topic, turn = self._choosers.get(number), self._turn_of_choices
        if topic is None or turn is None:
            return None
        choice = topic.choose_in_turn(turn, self._turns, self._open_partitions)
        if choice is not None:
            self._choices[number] = choice
            choice.queue.topics.append(number)
        return choice

    def _queue(self, number: int, partition: int, segment: Segment, routed: _RoutedSegments) -> None:
        """Queue a segment of a topic number, which the dispatcher may accumulate with others."""
        choice = self._open_partitions.get((number, partition))
        if choice is None:
            routed.queued.setdefault((number, partition), []).append(segment)
        else:
            _, segments, partitions, topics = choice.queue
            segments.append(segment)
            partitions.append(partition)
            topics.append(number)

    def _split_by_keys(self, topic: Topic, segment: Segment, input_count: int, routed: _RoutedSegments) -> None:
        """Split a segment by partition and queue the parts; park the segment if `Topic.key_partitions` is empty.

        `input_count` is the topic's number of partitions that the input knew, 0 if it knew none.
        """
        if not topic.key_partitions:
            topic.parked_keyed.append(segment)
            self._maybe_parked[topic.number] = topic
            self._assignments.request_leader(routed.now_ms)
            return
        # `input_count` decides the partition of a key even if the topic has more partitions now: with the new number, a
        # key might get another partition, where its later messages overtake messages in the old partition.  The number
        # in the topic table decides if `input_count` is 0, or the topic was created again with fewer partitions.
        key_partitions = topic.key_partitions_for(input_count) or self._topics.key_partitions_in_use(topic)
        for partition, part in kernels.split_by_partition(self._slab, segment, key_partitions):
            self._queue(topic.number, partition, part, routed)

    def _next_partition(self, topic: Topic, segments: list[Segment], now_ms: int) -> int | None:
        """Return a partition for AnyPartition messages.

        If no partition is open, or the topic has parked AnyPartition messages, park `segments` and return None.
        """
        if not topic.parked_unkeyed:
            partition = topic.next_partition(segments, self._is_open, now_ms)
            if partition is not None:
                return partition
            topic.parked_since_ms = now_ms
        topic.parked_unkeyed += segments
        self._maybe_parked[topic.number] = topic
        self._assignments.request_leader(now_ms)
        return None

    def _send_as_parcel(self, topic: Topic, segments: list[Segment], kind: ParcelKind, routed: _RoutedSegments) -> None:
        """Send AnyPartition messages as one parcel for the next partition, after the queued segments, or park them."""
        partition = self._next_partition(topic, segments, routed.now_ms)
        if partition is not None:
            self._send(routed)
            self._assign(kind, {(topic.number, partition): segments}, routed.now_ms)

    def _add_to_batch(
        self, topic: Topic, batch: PendingBatch[Segment], segment: Segment, routed: _RoutedSegments
    ) -> None:
        """Add a segment to the pending batch of its topic, and send the batches that the segment completes."""
        self._row.add(Counter.PerTopicBatchAnyPartition, segment.records)
        for segments in batch.add(segment, routed.now_ms):
            self._send_as_parcel(topic, segments, ParcelKind.BATCH, routed)
        if self.is_draining:
            self._flush_batch(topic, routed)
        elif batch.due_ms is not None and batch.due_ms != topic.scheduled_ms:
            topic.scheduled_ms = batch.due_ms
            heappush(self._due_heap, (topic.scheduled_ms, topic.number))

    def _send(self, routed: _RoutedSegments) -> None:
        """Send the queued segments."""
        if routed.queued:
            queued, routed.queued = routed.queued, {}
            self._assign(ParcelKind.QUEUE, queued, routed.now_ms)
        self._assignments.send_queues()

    def _assign(self, kind: ParcelKind, segments_of: _SegmentsByPartition, now_ms: int) -> None:
        """Send segments; discard those of partitions that cannot get an entry in the slab's partition table."""
        without_entry = self._assignments.send(kind, segments_of, now_ms)
        for (number, _), segments in without_entry.items():
            self._discard_without_entry(self._by_number[number], segments, now_ms)

    def _discard_without_entry(self, topic: Topic, segments: Iterable[Segment], now_ms: int) -> None:
        self._tables.report_full("partitions", "messages for further partitions are discarded.", now_ms)
        # New metadata lets the tables free the entries of deleted topics, but at most once in this interval.
        self._fetch_schedule.request(now_ms + SWEEP_INTERVAL_MS)
        reason, counter = DiscardReason.NO_AVAILABLE_PARTITIONS, Counter.DiscardNoAvailablePartition
        self._discards.settle(without_damaged(self._slab, self._row, segments), reason, topic.name, counter)

    # --- batches -----------------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a pending batch may be due; None if there is no pending batch."""
        return self._due_heap[0][0] if self._due_heap else None

    def flush_due(self, now_ms: int) -> None:
        while self._due_heap and self._due_heap[0][0] <= now_ms:
            _, number = heappop(self._due_heap)
            topic = self._by_number.get(number)
            due_ms = topic.batch.due_ms if topic is not None and topic.batch is not None else None
            if topic is not None and due_ms is not None and due_ms <= now_ms:
                self._flush([topic], now_ms)

    def flush_topic(self, number: int, now_ms: int) -> None:
        """Send the pending batch of a topic, and let the dispatchers send the topic's records that they accumulate."""
        topic = self._by_number.get(number)
        if topic is not None:
            self._flush([topic], now_ms)
        self._choices.pop(number, None)  # so that the outbox records the slot of the next run
        self._assignments.flush_topic(number)

    def flush_all(self, now_ms: int) -> None:
        self._flush(self._by_number.values(), now_ms)

    def _flush(self, topics: Iterable[Topic], now_ms: int) -> None:
        routed = _RoutedSegments(now_ms)
        for topic in topics:
            self._flush_batch(topic, routed)
        self._send(routed)

    def _flush_batch(self, topic: Topic, routed: _RoutedSegments) -> None:
        segments = topic.batch.flush() if topic.batch is not None else []
        if segments:
            self._send_as_parcel(topic, segments, ParcelKind.BATCH, routed)

    # --- parked messages ---------------------------------------------------------------------------------------------

    def unpark(self, now_ms: int) -> None:
        """Route parked messages again, because metadata or a dispatcher's frame may have opened their partitions."""
        routed = _RoutedSegments(now_ms)
        for topic in self._topics_with_parked():
            if topic.view is not None:
                self._unpark_keyed(topic, routed)
                self._unpark_unkeyed(topic, routed)
        self._send(routed)

    def park_lost(self, topic: Topic, segments: Iterable[Segment], now_ms: int) -> None:
        """Park the unsent messages of partitions that a topic has lost, in order of arrival among the parked ones.

        In the slab they stay bound to the lost partition until `unpark` binds them to another, so a new router finds
        them as messages of the lost partition.
        """
        found: list[FoundSegment] = []
        for segment in (*segments, *topic.parked_keyed, *topic.parked_unkeyed):
            try:
                found.append(inspect_segment(self._slab, segment))
            except SlabError as error:
                quarantine(self._row, error)
        found.sort(key=attrgetter("arrival"))
        topic.parked_keyed = [part.segment for part in found if part.flags & _HAS_KEY]
        if not topic.parked_unkeyed:
            topic.parked_since_ms = now_ms
        topic.parked_unkeyed = [part.segment for part in found if not part.flags & _HAS_KEY]
        self._maybe_parked[topic.number] = topic

    def _topics_with_parked(self) -> list[Topic]:
        """Return the topics with parked messages; reports ask each second, so not all topics are searched."""
        self._maybe_parked = {number: topic for number, topic in self._maybe_parked.items() if topic.has_parked}
        return list(self._maybe_parked.values())

    def _unpark_keyed(self, topic: Topic, routed: _RoutedSegments) -> None:
        if topic.parked_keyed and not topic.key_partitions:  # do not read thousands of runs only to park them again
            self._assignments.request_leader(routed.now_ms)
            return
        keyed, topic.parked_keyed = topic.parked_keyed, []
        for segment, header in zip(keyed, kernels.read_headers(self._slab, keyed), strict=True):
            try:
                if header is None:
                    _raise_damaged(self._slab, segment)
                self._route_admitted(topic, segment, header, routed)
            except SlabError as error:
                quarantine(self._row, error)

    def _unpark_unkeyed(self, topic: Topic, routed: _RoutedSegments) -> None:
        if self._awaits_dispatchers(topic, routed.now_ms):
            return
        parked, topic.parked_unkeyed = topic.parked_unkeyed, []
        for portion in portions_of(parked):
            topic.advance_partition()  # lets all partitions share the parked messages
            self._send_as_parcel(topic, portion, ParcelKind.WAITED, routed)

    def _awaits_dispatchers(self, topic: Topic, now_ms: int) -> bool:
        """Return True while a dispatcher of the topic starts, for at most `DISPATCHER_START_WAIT_MS`.

        If so, request metadata for the end of this time, because metadata causes another call of `unpark`.
        """
        until_ms = topic.parked_since_ms + DISPATCHER_START_WAIT_MS
        # `key_partitions` has all partitions with a leader, but is empty if metadata lacks some partitions.
        starting = (self._assignments.is_starting(topic.number, partition) for partition in topic.key_partitions)
        if now_ms >= until_ms or not any(starting):
            return False
        self._fetch_schedule.request(until_ms)
        return True

    def leaderless_topics(self) -> list[_TopicPartition]:
        """Return (topic number, `ALL_PARTITIONS`) for each topic that has parked messages, but no `key_partitions`."""
        parked = (topic for topic in self._topics_with_parked() if topic.view is not None)
        return [(topic.number, ALL_PARTITIONS) for topic in parked if not topic.key_partitions]

    def waiting_segments(self) -> Iterator[tuple[bytes, list[Segment]]]:
        """Yield topic name and segments of parked messages, the oldest first; the name is b"" before any metadata."""
        yield b"", self._awaiting_metadata
        for topic in self._topics_with_parked():
            lists = [parked for parked in (topic.parked_unkeyed, topic.parked_keyed) if parked]
            # A stall is recognized by the first message, so the older list comes first, whichever flows again.
            lists.sort(key=lambda parked: arrived_ms(self._slab, parked[0]))
            yield topic.name, [segment for parked in lists for segment in parked]

    def pop_waiting(self, topic: Topic) -> list[Segment]:
        """Remove and return the messages of a deleted topic that wait in the router."""
        waiting = topic.parked_unkeyed + topic.parked_keyed + (topic.batch.flush() if topic.batch is not None else [])
        topic.parked_unkeyed, topic.parked_keyed = [], []
        return waiting


def _max_payload_of(config: Config) -> int:
    """Return the maximum size of key, value and headers in a message: Kafka's limit less the overhead of a message."""
    return config.batching.message_max_bytes - SIZE_OVERHEAD


def _raise_damaged(slab: Slab, segment: Segment) -> NoReturn:
    """Raise SlabError for a segment if its run header could not be read."""
    read_run(slab, segment.chunk, segment.run)  # raises a more exact error if the header of the run is damaged
    raise_damage(slab, [segment])
