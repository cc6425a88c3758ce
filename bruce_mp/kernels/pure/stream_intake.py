"""Append the messages of stream connections to lanes, one round of reads after another.

The intake serves *plain* connections, whose messages need nothing but to be appended.  In a round it reads each ready
connection once, splits the bytes, appends all messages as one batch and counts them.  All connections of a round append
to the same lanes: the worker's, or those of one fenced attempt.  The caller handles the bytes behind the last whole
message, the events of other connections, and batches with a message that is invalid, found no room or has a timestamp
that clamping replaced.
"""

from __future__ import annotations

import select
from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
from bruce_mp.slab.room import chunks_for, room_for

if TYPE_CHECKING:
    import socket

    from bruce_mp.kernels.pure.arrival_rate import Coalescing
    from bruce_mp.kernels.pure.lanes import Ingested, Lanes
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import ProcessRow

__all__ = [
    "SplitStop",
    "StreamCounters",
    "StreamIntake",
    "StreamIntakeResult",
    "StreamSource",
    "StreamSplit",
    "UncountedBatch",
    "split_stream",
]

MIN_READ: Final = 64 << 10
"""Bytes of the buffer that must be free for a further read in a round."""
MAX_READ: Final = 256 << 10
"""Bytes of one read, so that a fast client leaves room for the others."""
MAX_EVENTS: Final = 512
"""Events of one poll, and so ready connections of one round."""


class CountedFlushGroup(Protocol):
    """A client's flush group: `number` is the source in the arrival numbers of its messages, `received` their count."""

    number: int
    received: int


class StreamSource:
    """A plain connection with the present flush group of its client; `kind` is 0 for UNIX and 1 for TCP.

    `start` has the bytes of an incomplete message that the caller received.  `lanes` are those of the client's fenced
    attempt; None = the worker's.
    """

    __slots__ = ("flush_group", "kind", "lanes", "socket", "start")

    def __init__(
        self,
        connection: socket.socket,
        flush_group: CountedFlushGroup,
        kind: int,
        start: bytes = b"",
        lanes: Lanes | None = None,
    ) -> None:
        self.socket = connection
        self.flush_group = flush_group
        self.kind = kind
        self.start = start
        self.lanes = lanes


class StreamCounters(NamedTuple):
    """The numbers of the counters that a round raises; a pair has those for UNIX and for TCP."""

    received: int
    any_partition: int
    partition_key: int
    forwarded: tuple[int, int]
    reads: tuple[int, int]
    got_data: tuple[int, int]


class UncountedBatch(NamedTuple):
    """An appended batch that the caller must count: its sources, each with (offset, length) of its messages."""

    parts: list[tuple[StreamSource, list[tuple[int, int]]]]
    ingested: Ingested


class StreamIntakeResult(NamedTuple):
    """The work that the intake leaves to the caller.

    `leftovers` has the bytes behind the last whole message of each source that has such bytes, or had a `start`.  The
    intake has discarded these sources.  `others` has the events that the intake does not handle: (descriptor, events).
    """

    leftovers: list[tuple[StreamSource, bytes]]
    uncounted: UncountedBatch | None
    others: list[tuple[int, int]]


class _Read(NamedTuple):
    """A source's data at offsets `begin` to `end` of the buffer, with (offset, length) of its messages up to `stop`."""

    source: StreamSource
    extents: list[tuple[int, int]]
    begin: int
    stop: int
    end: int


class StreamIntake:
    """Serves the plain connections of a stream worker, which has all connections in one epoll set.

    `buffer` is for the data of one round; between two calls the caller may use it.
    """

    rate_type: ClassVar = ArrivalRate

    def __init__(
        self, lanes: Lanes, pool: ChunkPool, row: ProcessRow, buffer: memoryview, *, counters: StreamCounters
    ) -> None:
        self._lanes = lanes
        self._pool = pool
        self._row = row
        self._buffer = buffer
        self._counters = counters
        self._sources: dict[int, StreamSource] = {}
        self._unread: list[tuple[int, int]] = []
        """Events of the last poll whose sources the next rounds read, before they poll again."""

    def apply_config(self, coalescing: Coalescing, max_size: int, *, blocks: bool) -> None:
        """Apply limits of naps and of messages, and discard all sources.

        A message has at most `max_size` bytes.  With `blocks` clients wait for room, so the intake must not
        append a round that lacks room for a message.
        """
        self._rate = self.rate_type(coalescing)
        self._max_size = max_size
        self._blocks = blocks
        self._sources.clear()

    def add(self, source: StreamSource) -> None:
        """Serve a connection that is plain now."""
        self._sources[source.socket.fileno()] = source

    def discard(self, descriptor: int) -> None:
        """Stop serving a connection."""
        self._sources.pop(descriptor, None)

    def run(self, epoll: select.epoll, now_ms: int, until_ms: int) -> StreamIntakeResult:
        """Serve the ready plain connections, round by round.

        The call may wait for data until `until_ms`, because a return after each round costs more.  It returns when the
        lanes' `next_due_ms` or `publish_ms` has come, or if `next_due_ms` is None.  While messages come fast, it naps
        before the next round, unless some sources of the last poll are still unread.  The pure kernel serves one round,
        and waits only in a nap before it.
        """
        if not self._unread:
            self._rate.nap(now_ms, until_ms, self._lanes.next_due_ms)
        reads, others = self._read_ready(epoll)
        if not reads:
            return StreamIntakeResult([], None, others)
        if not self._have_room([size for read in reads for _, size in read.extents]):
            # With `stop` at `begin` the caller gets all bytes of the round.
            return StreamIntakeResult(
                self._stop_serving([read._replace(stop=read.begin) for read in reads]), None, others
            )
        leftovers = self._stop_serving([read for read in reads if read.stop < read.end or read.source.start])
        uncounted = self._append(reads, now_ms)
        return StreamIntakeResult(leftovers, uncounted, others)

    def _read_ready(self, epoll: select.epoll) -> tuple[list[_Read], list[tuple[int, int]]]:
        """Read once each ready source that has the same lanes as the first; return also the events for the caller.

        The next rounds read the sources that this round did not read, before a new poll, so that all have a turn.
        """
        reads: list[_Read] = []
        others: list[tuple[int, int]] = []
        begin, is_new_poll = 0, not self._unread
        ready, self._unread = self._unread or epoll.poll(0, MAX_EVENTS), []
        for descriptor, events in ready:
            source = self._sources.get(descriptor)
            if source is None or events != select.EPOLLIN:
                if is_new_poll:  # an older event may be outdated; if not, the next poll reports it again
                    others.append((descriptor, events))
                continue
            received_at = begin + len(source.start)
            if received_at + MIN_READ > len(self._buffer) or (reads and source.lanes is not reads[0].source.lanes):
                self._unread.append((descriptor, events))  # no room in the buffer, or the source has other lanes
                continue
            end = self._receive(source, received_at)
            if end > received_at:
                self._buffer[begin:received_at] = source.start
                extents, stop, _, _ = split_stream(self._buffer, begin, end, self._max_size)
                reads.append(_Read(source, extents, begin, stop, end))
                begin = end
            elif is_new_poll:
                others.append((descriptor, events))
        return reads, others

    def _receive(self, source: StreamSource, begin: int) -> int:
        """Receive into the buffer from offset `begin` on, and return the end of the received bytes.

        After an error and at the end of the stream the result is `begin`.  The caller of `run` then gets the event, and
        handles both when it receives again.
        """
        self._row.add(self._counters.reads[source.kind])
        try:
            count = source.socket.recv_into(self._buffer[begin : begin + MAX_READ])
        except OSError:
            return begin
        if count:
            self._row.add(self._counters.got_data[source.kind])
        return begin + count

    def _stop_serving(self, reads: list[_Read]) -> list[tuple[StreamSource, bytes]]:
        """Discard the sources of these reads, and return the bytes of each from its `stop` on."""
        for read in reads:
            self.discard(read.source.socket.fileno())
        return [(read.source, bytes(self._buffer[read.stop : read.end])) for read in reads]

    def _have_room(self, sizes: list[int]) -> bool:
        """Return True if all messages will find room, or may be discarded because clients do not wait for room."""
        if not self._blocks or not sizes:
            return True
        return room_for(self._pool, chunks_for(max(sizes)), len(sizes)) == len(sizes)

    def _append(self, reads: list[_Read], now_ms: int) -> UncountedBatch | None:
        """Append all messages, and count them; return the batch instead if the caller must count it."""
        extents = [extent for read in reads for extent in read.extents]
        self._rate.add(len(extents), sum(read.end - read.begin for read in reads))
        if not extents:
            return None
        sources = [read.source.flush_group.number for read in reads for _ in read.extents]
        first_arrival = self._row.counted
        self._row.begin_batch()
        lanes = reads[0].source.lanes or self._lanes
        lanes.wall_offset_ms = self._lanes.wall_offset_ms  # the worker updates only that of its own lanes
        ingested = lanes.ingest(self._buffer, extents, first_arrival, now_ms, sources=sources)
        if ingested.rejections or ingested.no_room or lanes.has_replaced:
            return UncountedBatch([(read.source, read.extents) for read in reads], ingested)
        increments = {
            self._counters.received: len(extents),
            self._counters.any_partition: ingested.any_partition,
            self._counters.partition_key: ingested.partition_key,
            **dict.fromkeys(self._counters.forwarded, 0),
        }
        for read in reads:
            read.source.flush_group.received += len(read.extents)
            increments[self._counters.forwarded[read.source.kind]] += len(read.extents)
        self._row.commit_counted(first_arrival + len(extents), increments)
        return None


# --- the messages in a stream's bytes ---------------------------------------------------------------------------------
_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">ihh")  # size, API key, version
_BARRIER: Final = 258  # API keys
_FENCES: Final = frozenset({260, 261})  # begin and end of a fenced attempt


@unique
class SplitStop(IntEnum):
    """The reason why a split stopped."""

    MORE = 0
    """The remaining bytes are the beginning of a message, or none."""
    INVALID_SIZE = 1
    """The next size is smaller than the size field, so the start of the message after it is unknown."""
    TOO_LARGE = 2
    """The next size is above the limit; the message may be incomplete."""
    BARRIER = 3
    """The next frame is a complete barrier."""
    FENCE = 4
    """The next frame is complete, and begins or ends a fenced attempt."""


class StreamSplit(NamedTuple):
    """(Offset, length) of each whole message, the offset at which the split stopped, and the reason.

    `size` is the size of the message or frame there; 0 = unknown.
    """

    extents: list[tuple[int, int]]
    at: int
    stop: SplitStop
    size: int


def split_stream(buffer: memoryview, at: int, end: int, max_size: int) -> StreamSplit:
    """Split the bytes from `at` to `end`; a message may have at most `max_size` bytes, its size field included.

    A message has the same bytes as in a datagram; `parse` validates it later.  Barriers and the frames of fenced
    attempts are not messages.  The split stops before them, because the caller treats messages before and after them
    differently.
    """
    extents: list[tuple[int, int]] = []
    while True:
        at = _split_ordinary(buffer, at, end, max_size, extents)
        stop, size = _find_stop(buffer, at, end, max_size)
        if stop is not None:
            return StreamSplit(extents, at, stop, size)
        extents.append((at, size))
        at += size


def _split_ordinary(buffer: memoryview, at: int, end: int, max_size: int, extents: list[tuple[int, int]]) -> int:
    """Add messages to `extents` up to the first bytes that need `_find_stop`; return the offset of these bytes."""
    unpack, header_size = _HEADER.unpack_from, _HEADER.size
    while at + header_size <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header_size <= size <= max_size or at + size > end or api_key == _BARRIER or api_key in _FENCES:
            break
        extents.append((at, size))
        at += size
    return at


def _find_stop(buffer: memoryview, at: int, end: int, max_size: int) -> tuple[SplitStop | None, int]:
    """Return the reason to stop at `at`, and the size there; no reason for a message that is too short for a header."""
    if at + _SIZE.size > end:
        return SplitStop.MORE, 0
    (size,) = _SIZE.unpack_from(buffer, at)
    if size < _SIZE.size:
        return SplitStop.INVALID_SIZE, size
    if size > max_size:
        return SplitStop.TOO_LARGE, size
    if at + size > end:
        return SplitStop.MORE, size
    if size < _HEADER.size:
        return None, size
    # A barrier or a fence, because `_split_ordinary` has taken all complete messages with a header.
    return (SplitStop.FENCE if _HEADER.unpack_from(buffer, at)[1] in _FENCES else SplitStop.BARRIER), size
