"""Lanes: the open chunks of an input, one per busy topic (PartitionKey: per topic and partition index).

A parsed batch is appended group by group.  A group's records are written behind the lane's open run and become part of
it by one 8-byte store of the run's count and size, so that a crash leaves whole records or none.  A run is closed and
handed to the router when its chunk is full or its linger is over.

A topic that the router has not numbered yet, and any topic when there are too many lanes, goes through the *shared*
lane: its runs carry the topic's name and are closed at the end of the batch, so that they are handed over before
anything that the topic's own lane will take later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.kernels.pure.parse import parse
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State
from bruce_mp.slab.runs import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.kernels.pure.parse import Batch, Item
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.tables import TopicTable

__all__ = ["Ingested", "Lanes", "NoRoom"]

_PADDING: Final = tuple(bytes(-length & 7) for length in range(8))
_CHUNK_ROOM: Final = lay.CHUNK_BYTES - lay.CHUNK_HEADER
IDLE_MS: Final = 1000
"""A lane that nothing was appended to for so long gives its chunk up."""
_WAKE_SLACK_MS: Final = 2

LaneKey = tuple[int, int, int]
"""Topic id, partition index (-1 = AnyPartition), partition count (0 = AnyPartition)."""


class NoRoom(NamedTuple):
    """A message that found no room in the slab."""

    topic: bytes
    timestamp: int


class Ingested(NamedTuple):
    """What became of a batch: as parsed, and the messages that found no room."""

    batch: Batch
    no_room: list[NoRoom]


class _Lane:
    """An open chunk and, while `records` > 0, the open run at its end.  Offsets are file offsets."""

    __slots__ = (
        "chunk", "chunk_at", "due_ms", "end", "generation", "largest", "limit", "min_timestamp", "payload", "records",
        "run_at", "runs", "used_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunk = -1
        self.chunk_at = self.run_at = self.end = self.limit = 0
        self.generation = self.runs = self.records = self.payload = self.largest = 0
        self.min_timestamp = self.due_ms = self.used_ms = 0


class _Head(NamedTuple):
    """What the header of a run of a group says."""

    topic: int
    name: bytes
    flags: int
    partition_index: int
    partition_count: int

    @property
    def size(self) -> int:
        return lay.RUN_HEADER + lay.align(len(self.name))


class Lanes:
    """The lanes of one input process.

    `linger_ms` says for a topic how long a run may wait for more; 0 = hand over at the end of each batch.
    """

    def __init__(self, slab: Slab, pool: ChunkPool, topics: TopicTable, linger_ms: Callable[[bytes], int]) -> None:
        self._slab = slab
        self._pool = pool
        self._topics = topics
        self._topics_version = topics.version
        self._linger_ms = linger_ms
        self._lingers: dict[bytes, int] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        self._shared = _Lane()
        self._max_lanes = max(1, slab.geometry.chunks // 4)
        self._closed: list[Segment] = []
        self._next_due_ms: int | None = None

    def ingest(
        self,
        buffer: memoryview,
        places: Sequence[tuple[int, int]],
        first_arrival: int,
        now_ms: int,
        skip: frozenset[int] = frozenset(),
    ) -> Ingested:
        """Take a batch of messages: see `parse` for the arguments, `now_ms` is the wall clock."""
        self._notice_topics()
        batch = parse(buffer, places, first_arrival, skip)
        no_room: list[NoRoom] = []
        for (topic, keyed), items in batch.groups.items():
            for lane, head, members in self._assign(topic, items, keyed=keyed):
                dropped = self._append(lane, head, buffer, members, now_ms)
                no_room += [NoRoom(topic, item.timestamp) for item in dropped]
                self._after_append(lane, topic, now_ms)
        return Ingested(batch, no_room)

    def _notice_topics(self) -> None:
        """When the topic table changed, close all runs: what comes after may go to another lane than what was."""
        if self._topics.version != self._topics_version:
            self._topics_version = self._topics.version
            self._topics.refresh()
            self.close_all()

    def _assign(self, topic: bytes, items: list[Item], *, keyed: bool) -> list[tuple[_Lane, _Head, list[Item]]]:
        """Which lane each message of a group goes to."""
        flags = lay.FLAG_PARTITION_KEY if keyed else 0
        number = self._topics.id_of(topic)
        if not number:
            return [(self._shared, _Head(0, topic, flags, -1, 0), items)]
        if not keyed:
            return [(self._lane((number, -1, 0)), _Head(number, b"", flags, -1, 0), items)]
        count = self._topics.partitions_of(number)
        if not count:
            return [(self._shared, _Head(number, b"", flags, -1, 0), items)]
        members: dict[int, list[Item]] = {}
        for item in items:
            members.setdefault(item.partition_key % count, []).append(item)
        return [
            (self._lane((number, index, count)), _Head(number, b"", flags, index, count), some)
            for index, some in members.items()
        ]

    def _lane(self, key: LaneKey) -> _Lane:
        lane = self._lanes.get(key)
        if lane is not None:
            return lane
        if len(self._lanes) >= self._max_lanes:
            return self._shared
        lane = self._lanes[key] = _Lane()
        return lane

    def _after_append(self, lane: _Lane, topic: bytes, now_ms: int) -> None:
        lane.used_ms = now_ms
        linger = self._lingers.get(topic)
        if linger is None:
            linger = self._lingers[topic] = self._linger_ms(topic)
        if lane is self._shared or linger == 0:
            self._close_run(lane)
        elif lane.records and not lane.due_ms:
            lane.due_ms = now_ms + linger
            self._wake_by(lane.due_ms)

    # --- appending ---------------------------------------------------------------------------------------------------

    def _append(self, lane: _Lane, head: _Head, buffer: memoryview, items: list[Item], now_ms: int) -> list[Item]:
        """Append messages to a lane; those for which there was no room come back."""
        dropped: list[Item] = []
        pending: list[bytes] = []
        room = self._room(lane, head)
        for item in items:
            record = _record(buffer, item, head.flags)
            if len(record) > room:
                self._commit(lane, pending)
                pending = []
                if not self._make_room(lane, head, len(record), item, now_ms):
                    dropped.append(item)
                    room = 0
                    continue
                room = self._room(lane, head)
            elif not lane.records and not pending:
                self._open_run(lane, head, item, now_ms)
            pending.append(record)
            room -= len(record)
            _note(lane, item)
        self._commit(lane, pending)
        return dropped

    @staticmethod
    def _room(lane: _Lane, head: _Head) -> int:
        """Bytes for records in the open run, or, where none is open, in one that would be."""
        if lane.chunk < 0:
            return 0
        return lane.limit - lane.end - (0 if lane.records else head.size)

    def _make_room(self, lane: _Lane, head: _Head, size: int, item: Item, now_ms: int) -> bool:
        """Give the lane a new chunk, or a span for a large record, with an open run in it."""
        self._give_up(lane)
        span = -(-(lay.CHUNK_HEADER + head.size + size) // lay.CHUNK_BYTES)
        chunk = self._pool.allocate(span, now_ms)
        if chunk is None:
            return False
        lane.chunk, lane.chunk_at, lane.runs = chunk, self._slab.chunk_at(chunk), 0
        lane.generation = self._slab.words[(lane.chunk_at + lay.CHUNK_GENERATION) >> 2]
        lane.end, lane.limit = lane.chunk_at + lay.CHUNK_HEADER, lane.chunk_at + span * lay.CHUNK_BYTES
        self._open_run(lane, head, item, now_ms)
        return True

    def _open_run(self, lane: _Lane, head: _Head, item: Item, now_ms: int) -> None:
        lay.RUN.pack_into(
            self._slab.view, lane.end, State.OPEN, lane.generation, 0, head.size, head.topic, -1, -1, -1, head.flags, 0,
            now_ms, 0, head.partition_index, head.partition_count, len(head.name), 0, 0, 0, lay.RUN_MAGIC,
            item.arrival, item.timestamp,
        )  # fmt: skip
        if head.name:
            at = lane.end + lay.RUN_HEADER
            self._slab.view[at : at + len(head.name)] = head.name
        lane.run_at, lane.end = lane.end, lane.end + head.size
        lane.records = lane.payload = lane.largest = 0
        lane.min_timestamp = item.timestamp
        lane.runs += 1
        self._slab.words[(lane.chunk_at + lay.CHUNK_RUNS) >> 2] = lane.runs

    def _commit(self, lane: _Lane, records: list[bytes]) -> None:
        """Write records behind the open run and make them part of it."""
        if not records:
            return
        view, longs = self._slab.view, self._slab.longs
        data = b"".join(records)
        view[lane.end : lane.end + len(data)] = data
        lane.end += len(data)
        lane.records += len(records)
        self._slab.words[(lane.run_at + lay.RUN_PAYLOAD) >> 2] = lane.payload
        self._slab.words[(lane.run_at + lay.RUN_LARGEST) >> 2] = lane.largest
        self._slab.store_signed(lane.run_at + lay.RUN_MIN_TIMESTAMP, lane.min_timestamp)
        longs[(lane.run_at + lay.RUN_COUNT) >> 3] = lane.records | (lane.end - lane.run_at) << 32

    # --- closing -----------------------------------------------------------------------------------------------------

    def _close_run(self, lane: _Lane) -> None:
        """Hand the lane's open run to the router."""
        if not lane.records:
            return
        self._slab.words[lane.run_at >> 2] = State.FILLED
        first = lane.run_at + lay.RUN_HEADER
        name = self._slab.words[(lane.run_at + lay.RUN_NAME_LENGTH) >> 2] & 0xFFFF
        at = lane.chunk_at
        place = (lane.run_at - at, first + lay.align(name) - at)
        self._closed.append(Segment(lane.chunk, lane.generation, *place, lane.records, lane.payload))
        lane.records = lane.due_ms = 0

    def _give_up(self, lane: _Lane) -> None:
        """Close the run and let the chunk go."""
        self._close_run(lane)
        if lane.chunk >= 0:
            self._pool.seal(lane.chunk)
            lane.chunk = -1

    def close_due(self, now_ms: int) -> None:
        """Close the runs whose linger is over, and give up the chunks of idle lanes."""
        if self._next_due_ms is None or now_ms < self._next_due_ms:
            return
        self._next_due_ms = None
        idle = [key for key, lane in self._lanes.items() if self._look(lane, now_ms)]
        for key in idle:
            del self._lanes[key]

    def _look(self, lane: _Lane, now_ms: int) -> bool:
        """Close what is due in a lane; True when the lane is idle and has given up its chunk."""
        if lane.records and lane.due_ms <= now_ms + _WAKE_SLACK_MS:
            self._close_run(lane)
        if lane.records:
            self._wake_by(lane.due_ms)
            return False
        if lane.used_ms + IDLE_MS <= now_ms:
            self._give_up(lane)
            return True
        self._wake_by(lane.used_ms + IDLE_MS)
        return False

    def _wake_by(self, due_ms: int) -> None:
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms

    def close_all(self) -> None:
        """Close every run and give up every chunk."""
        for lane in self._lanes.values():
            self._give_up(lane)
        self._lanes.clear()
        self._give_up(self._shared)

    @property
    def next_due_ms(self) -> int | None:
        """When `close_due` has something to do next, on the wall clock."""
        return self._next_due_ms

    def drain_closed(self) -> list[Segment]:
        """The runs handed over since the last call, in order.  The batch before must have been landed."""
        self._pool.release_seals()
        closed, self._closed = self._closed, []
        return closed


def _record(buffer: memoryview, item: Item, flags: int) -> bytes:
    arrival, timestamp, partition_key, key_at, key_end, value_at, value_end = item
    key_length, value_length = key_end - key_at, value_end - value_at
    head = lay.RECORD.pack(
        0, flags, 0, 0, 0, key_length, value_length, partition_key, -1, -1, -1, 0, timestamp, arrival
    )  # fmt: skip
    return b"".join(
        (head, buffer[key_at:key_end], buffer[value_at:value_end], _PADDING[(key_length + value_length) & 7])
    )


def _note(lane: _Lane, item: Item) -> None:
    """Keep the sums of the open run."""
    size = item.key_end - item.key_at + item.value_end - item.value_at
    lane.payload += size
    lane.largest = max(lane.largest, size)
    lane.min_timestamp = min(lane.min_timestamp, item.timestamp)
