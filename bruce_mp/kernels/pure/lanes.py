"""Lanes: the open chunks of an input.

A busy topic has a lane for its AnyPartition messages, and a lane for its PartitionKey messages of each partition index.
`Lanes` appends a parsed batch to the lanes' open runs, one *group* (the messages of a topic and type) after another.
It closes a run when the run's chunk is full or the run's linger ends.  Lingers end at *ticks*, times that all lanes
share (`closed_runs.tick_after`), so that the input publishes the runs of many topics together.  A run that filled its
chunk is published at the next tick at the latest.

The router gives each topic a number.  A topic without a number uses a *shared* lane, and its runs contain its name.  If
there are too many lanes, further topics with numbers also use shared lanes.  `Lanes` closes the run of a shared lane
after each group: the topic may get a separate lane later, and the input must hand over its earlier messages first.  A
hash of the topic's name chooses the shared lane, so a topic with stuck messages keeps the chunks of one shared lane.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple
from zlib import crc32

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels.closed_runs import LEEWAY_MS, ClosedRuns, tick_after
from bruce_mp.kernels.pure.lane import Lane, LaneHeader, record_size
from bruce_mp.kernels.pure.lane_chunks import LaneChunks
from bruce_mp.kernels.pure.parse import parse
from bruce_mp.kernels.pure.timestamps import ReplacementCounts, replace_timestamps
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import is_settled
from bruce_mp.slab.handover_tickets import HandoverTickets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.kernels.pure.lane_chunks import ChunkSource, LaneKey, Thresholds
    from bruce_mp.kernels.pure.parse import ParsedMessage, PartitionerOfTopic, RejectedMessage
    from bruce_mp.kernels.pure.timestamps import TimestampWindow, TopicReplacements, WindowOfTopic
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import TopicTable

__all__ = ["Ingested", "Lanes", "NoRoom"]

IDLE_MS: Final = 1000
"""Time without a message after which a lane seals its chunk, if all messages in the chunk are settled."""
MAX_SHARED_LANES: Final = 64
"""Number of shared lanes in a large slab."""
_SHARED_LANE_DIVISOR: Final = 64
"""Limit of shared lanes: the slab's chunk count divided by this number, because each lane keeps a chunk open."""
_LANE_DIVISOR: Final = 4
"""Limit of other lanes: the slab's chunk count divided by this number."""
_ARRIVAL, _TIMESTAMP, _PARTITION_KEY, _OPTIONS = range(4)  # fields of a `ParsedMessage`
WAKE_SLACK_MS: Final = 12
"""`close_due` also closes runs that become due within this time, so that fewer frames wake the router."""
_LEEWAY_DIVISOR: Final = 6
"""The leeway (see `_set_leeway`) is 0 if the shortest linger divided by this number is below twice LEEWAY_MS."""
_MAX_LINGER_MS: Final = 250
"""The longest linger that `run_linger.py` chooses; `Lanes` takes it for the shortest linger until it knows a linger."""

_UNUSED_HEADER: Final = LaneHeader(topic=0, name=b"", flags=0, partition_index=-1, partition_count=0)
"""The header of a shared lane before its first use."""


class NoRoom(NamedTuple):
    """A message for which the slab has no room; `arrival` is its arrival number."""

    topic: bytes
    timestamp: int
    arrival: int
    reason: DiscardReason = DiscardReason.NO_MEM


class Ingested(NamedTuple):
    """The result of a batch.

    `any_partition_count` and `partition_key_count` are the numbers of valid messages of each type, with or without room
    in the slab.  `rejections` are the invalid messages, `no_room` the valid messages without room.
    """

    any_partition_count: int
    partition_key_count: int
    rejections: list[RejectedMessage]
    no_room: list[NoRoom]


class Lanes:
    """The lanes of one input process.

    `linger_ms` returns the linger of a topic's runs; 0 = close them after each group.  `tickets` hands closed runs over
    to the router.  `windows` returns the timestamp window of a topic; None = the topic admits any timestamp.  If
    `thresholds` is None, a topic may fill the slab.
    """

    lane_type: ClassVar = Lane  # the compiled variant overrides it

    def __init__(
        self,
        slab: Slab,
        pool: ChunkSource,
        topics: TopicTable,
        linger_ms: Callable[[bytes], int],
        tickets: HandoverTickets | None = None,
        *,
        windows: WindowOfTopic = lambda _: None,
        partitioners: PartitionerOfTopic | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self._slab = slab
        self._pool = pool
        self._topics = topics
        self._topics_version = topics.version  # of the last `_refresh_topics`
        self._linger_ms = linger_ms
        self._lingers: dict[int, int] = {}  # by topic number
        self.partitioners = partitioners
        """A function that returns the partitioner of a topic; None = no record key chooses a partition."""
        self.windows = windows
        self._windows_by_topic: dict[int, TimestampWindow | None] = {}  # by topic number
        self._replaced = ReplacementCounts()
        self.wall_offset_ms = 0
        """The time since 1970 minus the steady time, in ms."""
        self._set_leeway(_MAX_LINGER_MS)
        self._partition_counts: dict[int, int] = {}
        """Partition counts by topic number, cached from `_restored_counts` or else from the topic table."""
        self._restored_counts: Mapping[int, int] = {}
        """The partition counts of a dead input: see `restore_partition_counts`."""
        self._lanes: dict[LaneKey, Lane] = {}
        shared_count = min(MAX_SHARED_LANES, max(1, slab.geometry.chunks // _SHARED_LANE_DIVISOR))
        self._shared = tuple(self.lane_type(slab, _UNUSED_HEADER) for _ in range(shared_count))
        self._is_shared = frozenset(self._shared).__contains__  # cheaper than a method
        self._max_lanes = max(1, slab.geometry.chunks // _LANE_DIVISOR)
        self._closed = ClosedRuns(slab.geometry.chunks * lay.CHUNK_BYTES)
        self._tickets = tickets or HandoverTickets(slab, pool.owner)
        self._next_due_ms: int | None = None
        self._chunks = LaneChunks(
            slab,
            pool,
            thresholds=thresholds,
            lanes=self._lanes,
            partition_counts=self._partition_counts,
            close_run=self._close_full_run,
            request_publish=self._closed.request_publish,
        )

    @property
    def caller_retries(self) -> bool:
        """True if the caller retries messages that exceeded a threshold; so no later message may overtake them."""
        return self._chunks.caller_retries

    @caller_retries.setter
    def caller_retries(self, caller_retries: bool) -> None:
        self._chunks.caller_retries = caller_retries

    def ingest(
        self,
        buffer: memoryview,
        extents: Sequence[tuple[int, int]],
        first_arrival: int,
        now_ms: int,
        skip: frozenset[int] = frozenset(),
        *,
        sources: Sequence[int] | None = None,
        keeps_timestamps: bool = False,
    ) -> Ingested:
        """Parse and append a batch of messages; see `parse` for the arguments.

        `now_ms` is a steady time.  If `keeps_timestamps` is set, clamping does not replace timestamps of the batch.
        """
        self._refresh_topics()
        batch = parse(buffer, extents, first_arrival, skip, sources=sources, partitioners=self.partitioners)
        no_room: list[NoRoom] = []
        for (topic, keyed), messages in batch.groups.items():
            for lane, members in self._split_by_lane(topic, messages, keyed=keyed):
                stamped, originals = self._apply_window(lane, members, now_ms, keeps_timestamps=keeps_timestamps)
                refused = self._append(lane, buffer, stamped, now_ms)
                self._count_replaced(topic, originals, refused)
                no_room += [NoRoom(topic, each[_TIMESTAMP], each[_ARRIVAL], reason) for each, reason in refused]
                self._schedule_close(lane, topic, now_ms)
        keyed_messages = chain.from_iterable(messages for (_, keyed), messages in batch.groups.items() if keyed)
        # A message with a hash of its record key as the partition key arrived as an AnyPartition message.
        partition_key_count = sum(not message[_OPTIONS] & lay.OPTION_HASHED for message in keyed_messages)
        valid_count = sum(map(len, batch.groups.values()))
        return Ingested(valid_count - partition_key_count, partition_key_count, batch.rejections, no_room)

    def ingest_landed(self, count: int, max_size: int, now_ms: int, skip: frozenset[int] = frozenset()) -> Ingested:
        """Append the first `count` datagrams of the landing zone.

        A datagram of more than `max_size` bytes is malformed, even if the part of it in its slot is a valid message.
        """
        extents = landing_zone.landed_extents_within(self._slab, count, max_size)
        first_arrival = self._slab.longs[landing_zone.base_at(self._slab) >> 3]
        return self.ingest(self._slab.view, extents, first_arrival, now_ms, skip)

    def _refresh_topics(self) -> None:
        """If the topic table has changed, close all runs and use the new table.

        The later messages of a topic may use another lane, and must not overtake its earlier messages.  The lanes keep
        their chunks, because most topics are unchanged.
        """
        if self._topics.version != self._topics_version:
            self._topics_version = self._topics.version
            self._topics.refresh()
            self._partition_counts.clear()
            self.close_runs()
            self._chunks.on_topics_changed()

    def _split_by_lane(
        self, topic: bytes, messages: list[ParsedMessage], *, keyed: bool
    ) -> list[tuple[Lane, list[ParsedMessage]]]:
        """Return the lanes for the messages of a group, each lane with its messages; `keyed`: see `parse.GroupKey`."""
        number = self._topics.number_of(topic)
        if not number:
            return [(self._shared_lane(0, topic, keyed=keyed), messages)]
        if not keyed:
            return [(self._lane_for(topic, number, index=-1, count=0), messages)]
        count = self._partition_count_of(number)
        if not count:
            return [(self._shared_lane(number, topic, keyed=True), messages)]
        by_index: dict[int, list[ParsedMessage]] = {}
        for message in messages:
            by_index.setdefault(message[_PARTITION_KEY] % count, []).append(message)
        return [(self._lane_for(topic, number, index, count), members) for index, members in by_index.items()]

    def _partition_count_of(self, number: int) -> int:
        """Return a topic's partition count; it stays the same until `_refresh_topics` has closed all runs.

        A new count while a run is open could put messages of a key into a second lane, where they could overtake the
        earlier messages in the first lane.
        """
        count = self._partition_counts.get(number)
        if count is None:
            count = self._restored_counts.get(number) or self._topics.partition_count_of(number)
            self._partition_counts[number] = count
        return count

    def restore_partition_counts(self, counts: Mapping[int, int]) -> None:
        """Use these partition counts, by topic number, until `close_all`.

        A successor finishes the last batch of a dead input with the counts that the dead input used, so that it chooses
        the same lanes.
        """
        self._restored_counts = counts

    def _lane_for(self, topic: bytes, number: int, index: int, count: int) -> Lane:
        """Return the lane of a numbered topic for a partition index.

        `count` is the topic's partition count.  For AnyPartition messages `index` is -1 and `count` is 0.
        """
        key = (number, index, count)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= self._max_lanes:
                return self._shared_lane(number, topic, keyed=count > 0, count=count)
            flags = lay.FLAG_PARTITION_KEY if count else 0
            lane = self._lanes[key] = self.lane_type(self._slab, LaneHeader(number, b"", flags, index, count))
            lane.window = self._window_of(number, topic)
        return lane

    def may_grow(self, topic: bytes, span: int, now_ms: int) -> bool:
        """Return True if a refused message that needs `span` chunks is worth another try now."""
        return self._chunks.may_grow(self._topics.number_of(topic) or topic, span, now_ms)

    def _shared_lane(self, number: int, topic: bytes, *, keyed: bool, count: int = 0) -> Lane:
        """Return the shared lane of a topic, after setting the lane's header for the topic's runs.

        `number` is 0 for a topic without a number.  `count` is the partition count by which the group was split among
        lanes; 0 = it was not split.
        """
        lane = self._shared[crc32(topic) % len(self._shared)]
        name, flags = b"" if number else topic, lay.FLAG_PARTITION_KEY if keyed else 0
        lane.header = LaneHeader(number, name, flags, partition_index=-1, partition_count=count)
        lane.window = self._window_of(number, topic)
        return lane

    def _all_lanes(self) -> Iterable[Lane]:
        return chain(self._shared, self._lanes.values())

    def _schedule_close(self, lane: Lane, topic: bytes, now_ms: int) -> None:
        """After an append, set the due time of a lane's open run if it has none yet.

        If the lane is shared, or if its topic has no linger, close the run instead.
        """
        lane.used_ms = now_ms
        if lane.due_ms:
            return  # the open run has its due time already
        if self._is_shared(lane) or self._linger_of(lane.header.topic, topic) == 0:
            self._close_run(lane)
            self._wake_by(now_ms + IDLE_MS)  # to seal the lane's chunk if the lane is idle by then
        elif lane.records:
            # Not the first tick after now: a wake-up that is earlier by the leeway could be in the past.
            lane.due_ms = tick_after(now_ms + self.leeway_ms, self._linger_of(lane.header.topic, topic))
            self._wake_by(lane.due_ms - self.leeway_ms)

    def apply_lingers(self, linger_ms: Callable[[bytes], int]) -> None:
        """Apply changed lingers; open runs keep their due times."""
        self._linger_ms = linger_ms
        self._lingers.clear()
        self._set_leeway(_MAX_LINGER_MS)

    def _set_leeway(self, shortest_linger_ms: int) -> None:
        """Set `leeway_ms` for a new shortest linger.

        `next_due_ms` is earlier than the tick by the leeway, so that a caller that wakes up late is still in time.  The
        leeway is 0 if it would take much of the shortest linger.
        """
        self._shortest_linger_ms = shortest_linger_ms
        self.leeway_ms = LEEWAY_MS if shortest_linger_ms // _LEEWAY_DIVISOR >= 2 * LEEWAY_MS else 0

    def _linger_of(self, number: int, topic: bytes) -> int:
        """Return the linger of a topic, cached by topic number.

        A cache by name could grow without limit, because clients can invent any number of names.
        """
        linger = self._lingers.get(number)
        if linger is None:
            linger = self._lingers[number] = self._linger_ms(topic)
            if 0 < linger < self._shortest_linger_ms:
                self._set_leeway(linger)
        return linger

    # --- timestamps --------------------------------------------------------------------------------------------------

    def apply_windows(self, windows: WindowOfTopic) -> None:
        """Apply changed windows to later messages."""
        self.windows = windows
        self._windows_by_topic.clear()
        names = {number: name for name, number in self._topics.numbers().items()}
        for (number, _, _), lane in self._lanes.items():
            if number in names:  # if not, the topic has lost this number, and will not use the lane any more
                lane.window = self._window_of(number, names[number])

    def _window_of(self, number: int, topic: bytes) -> TimestampWindow | None:
        """Return the timestamp window of a topic, cached for numbered topics only.

        A cache for the other topics could grow without limit, because clients can invent any number of names.
        """
        if not number:
            return self.windows(topic)
        if number not in self._windows_by_topic:
            self._windows_by_topic[number] = self.windows(topic)
        return self._windows_by_topic[number]

    def _apply_window(
        self, lane: Lane, messages: list[ParsedMessage], now_ms: int, *, keeps_timestamps: bool
    ) -> tuple[list[ParsedMessage], list[ParsedMessage]]:
        """Return all messages, with the timestamps to store, and the originals of messages that clamping changes."""
        window, lane.keeps_timestamps = lane.window, keeps_timestamps
        if window is None or (keeps_timestamps and window.is_clamp):
            return messages, []
        stamped, originals = replace_timestamps(messages, window, now_ms + self.wall_offset_ms)
        return stamped, originals if window.is_clamp else []

    def _count_replaced(
        self, topic: bytes, originals: list[ParsedMessage], refused: list[tuple[ParsedMessage, DiscardReason]]
    ) -> None:
        """Count replaced timestamps of appended messages only, because a caller may ingest refused messages again."""
        if originals and refused:
            refused_arrivals = {message[_ARRIVAL] for message, _ in refused}
            originals = [message for message in originals if message[_ARRIVAL] not in refused_arrivals]
        if originals:
            first = originals[0]
            self._replaced.add(topic, first[_TIMESTAMP], first[_ARRIVAL], len(originals))

    @property
    def has_replaced(self) -> bool:
        """True if clamping replaced timestamps since the last `drain_replaced`."""
        return bool(self._replaced)

    def drain_replaced(self) -> list[TopicReplacements]:
        """Return and clear the counts of the timestamps that clamping replaced, by topic."""
        return self._replaced.drain()

    # --- appending ---------------------------------------------------------------------------------------------------

    def _append(
        self, lane: Lane, buffer: memoryview, messages: list[ParsedMessage], now_ms: int
    ) -> list[tuple[ParsedMessage, DiscardReason]]:
        """Append messages to a lane; return the messages for which there was no room, each with the reason.

        There may be room for shorter messages behind such a message.  But if `LaneChunks.refuses_rest` is set, the call
        refuses all messages behind it without a try.
        """
        refused: list[tuple[ParsedMessage, DiscardReason]] = []
        index = 0
        while index < len(messages):
            if lane.has_room(messages[index]) or self._chunks.make_room(lane, record_size(messages[index]), now_ms):
                index = lane.append(buffer, messages, index, now_ms)
            else:
                stop = len(messages) if self._chunks.refuses_rest else index + 1
                refused += [(message, self._chunks.refusal) for message in messages[index:stop]]
                index = stop
        return refused

    # --- closing -----------------------------------------------------------------------------------------------------

    def _close_run(self, lane: Lane) -> None:
        """Close the lane's open run, if it has one; the input publishes the run when it is due."""
        if lane.records:
            due_ms = lane.due_ms  # `lane.close_run` resets it
            self._closed.add(lane.close_run(self._tickets), due_ms)

    def _close_full_run(self, lane: Lane) -> None:
        """Close the run of a lane that needs another chunk, and schedule its publication."""
        if lane.records:
            self._close_run(lane)
            if self.publish_ms:  # if this is 0, the caller publishes after the batch, without a wake-up
                self._wake_by(self.publish_ms - self.leeway_ms)

    def close_due(self, now_ms: int) -> None:
        """Close due runs and make all closed runs due for publication; seal the chunks of idle lanes.

        Do nothing before `next_due_ms`.
        """
        if self._next_due_ms is None or now_ms < self._next_due_ms:
            return
        self._next_due_ms = None
        for shared in self._shared:
            if shared.chunk >= 0:
                self._close_if_due(shared, now_ms)
        for key in self._close_due_lanes(now_ms):
            del self._lanes[key]
        self._closed.request_publish()  # including runs that filled their chunks and waited for this tick

    def _close_due_lanes(self, now_ms: int) -> list[LaneKey]:
        """Close due runs in lanes that are not shared; seal the chunks of idle lanes, and return these lanes' keys."""
        return [key for key, lane in self._lanes.items() if self._close_if_due(lane, now_ms)]

    def _close_if_due(self, lane: Lane, now_ms: int) -> bool:
        """Close a lane's run if it is due.  If the lane is idle, seal its chunk and return True, otherwise False."""
        if lane.records and lane.due_ms <= now_ms + WAKE_SLACK_MS:
            self._close_run(lane)
        if lane.records:
            self._wake_by(lane.due_ms - self.leeway_ms)
            return False
        if lane.used_ms + IDLE_MS <= now_ms and self._is_chunk_settled(lane):
            self._chunks.seal_lane(lane)
            return True
        # At a tick, so that one wake-up serves all idle lanes.
        self._wake_by(tick_after(now_ms, IDLE_MS))
        return False

    def _is_chunk_settled(self, lane: Lane) -> bool:
        """Return True if all messages of the lane's chunk are settled, so that the pool can reclaim the chunk.

        A lane with unsettled messages keeps its chunk for further messages.  If it sealed the chunk, a slow sender
        would fill the slab during an outage of Kafka, with one chunk for each message.
        """
        return lane.chunk < 0 or is_settled(self._slab, lane.chunk)

    def _wake_by(self, due_ms: int) -> None:
        """Make `next_due_ms` at most `due_ms`."""
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms

    def close_runs(self) -> None:
        """Close every run and make all closed runs due for publication; the lanes keep their chunks."""
        for lane in self._all_lanes():
            self._close_run(lane)
        self._closed.request_publish()

    def close_all(self) -> None:
        """Close every run, seal every chunk, and discard all lanes except the shared ones."""
        for lane in self._all_lanes():
            self._chunks.seal_lane(lane)
        self._lanes.clear()
        self._partition_counts.clear()
        self._chunks.clear_donors()
        self._restored_counts = {}

    def request_publish(self) -> None:
        """Make the next `drain_ready` return all closed runs."""
        self._closed.request_publish()

    @property
    def publish_ms(self) -> int:
        """Return the steady time at which the input must publish the closed runs; 0 = now."""
        return self._closed.publish_ms

    @property
    def next_due_ms(self) -> int | None:
        """Return the steady time from which `close_due` has work; None = it has none."""
        return self._next_due_ms

    def drain_closed(self) -> list[Segment]:
        """Return the runs closed since the last drain, in order; the caller must have committed the last batch."""
        self._pool.allow_reclaim()  # allowed now, because the last batch is committed
        return self._closed.drain()

    def drain_ready(self, now_ms: int) -> list[Segment]:
        """Return the closed runs if their publication is due; the caller must have committed the last batch."""
        if now_ms >= self.publish_ms:
            return self.drain_closed()
        self._pool.allow_reclaim()
        return []
