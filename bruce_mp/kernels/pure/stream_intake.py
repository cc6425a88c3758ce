"""Append the messages of stream connections to lanes, one round of reads after another.

The intake serves *plain* connections: their messages need only be appended and counted.  In a *round* it reads each
ready connection once, splits the bytes into messages, appends all messages as one batch and counts them.  All messages
of a round go to the same lanes: the lanes of the worker, or the lanes of one fenced attempt.  The caller handles the
bytes behind the last whole message, the events of other connections, and batches with a message that is invalid, has
no room or has a timestamp that clamping replaced.
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
"""Number of free bytes in the buffer that each read of a round needs."""
MAX_READ: Final = 256 << 10
"""Maximum size of one read, so that a fast client leaves room in the buffer for other clients."""
MAX_EVENTS: Final = 512
"""Maximum number of events of one poll, and so of connections in one round."""


class CountedFlushGroup(Protocol):
    """The part of a flush group that the intake uses.

    `number` is in the arrival numbers of the group's messages, `received` is the number of these messages.
    """

    number: int
    received: int


class StreamSource:
    """A plain connection with the present flush group of its client; `kind` is 0 for UNIX and 1 for TCP.

    `incomplete` is the part of the next message that the caller has already received.  `lanes` are the lanes of the
    client's fenced attempt; None = the lanes of the worker.
    """

    __slots__ = ("flush_group", "incomplete", "kind", "lanes", "socket")

    def __init__(
        self,
        connection: socket.socket,
        flush_group: CountedFlushGroup,
        kind: int,
        incomplete: bytes = b"",
        lanes: Lanes | None = None,
    ) -> None:
        self.socket = connection
        self.flush_group = flush_group
        self.kind = kind
        self.incomplete = incomplete
        self.lanes = lanes


class StreamCounters(NamedTuple):
    """The numbers of the counters that a round raises; a pair has the counters for UNIX and for TCP connections.

    `reads` counts all reads, and `got_data` the reads that received data.
    """

    received: int
    any_partition: int
    partition_key: int
    forwarded: tuple[int, int]
    reads: tuple[int, int]
    got_data: tuple[int, int]


class UncountedBatch(NamedTuple):
    """An appended batch that the caller must count.

    `parts` has the sources of the batch, each with (offset, length) of its messages in the intake's buffer.
    """

    parts: list[tuple[StreamSource, list[tuple[int, int]]]]
    ingested: Ingested


class StreamIntakeResult(NamedTuple):
    """The work that the intake leaves to the caller.

    `leftovers` has the sources that the intake does not serve any more, each with its bytes behind the last whole
    message.  These are the sources with such bytes, and the sources with an `incomplete` before this round.  If there
    is no room for the round, `leftovers` has all sources of the round with all their bytes.

    `uncounted` is the last batch, if the caller must count it.  `unhandled_events` has (descriptor, events) of each
    event that the intake does not handle.
    """

    leftovers: list[tuple[StreamSource, bytes]]
    uncounted: UncountedBatch | None
    unhandled_events: list[tuple[int, int]]


class _Read(NamedTuple):
    """The data of a source, at offsets `begin` to `end` of the buffer.

    `extents` has (offset, length) of the whole messages in the data.  `stop` is the end of these messages.
    """

    source: StreamSource
    extents: list[tuple[int, int]]
    begin: int
    stop: int
    end: int


class StreamIntake:
    """Serves the plain connections of a stream worker; all connections of the worker are in one epoll set.

    `buffer` is for the data of one round; between two calls the caller may use `buffer`.
    """

    rate_type: ClassVar = ArrivalRate  # the compiled variant overrides it

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
        """Events of the last poll that no round has handled yet; the next rounds handle them before a new poll."""

    def apply_config(self, coalescing: Coalescing, max_size: int, *, clients_wait: bool) -> None:
        """Apply the limits of naps and of messages, and stop serving all connections.

        A message has at most `max_size` bytes.  If clients wait while there is no room, the intake appends a round only
        if there is room for all its messages.
        """
        self._rate = self.rate_type(coalescing)
        self._max_size = max_size
        self._clients_wait = clients_wait
        self._sources.clear()

    def add(self, source: StreamSource) -> None:
        """Start serving a connection, which must be plain."""
        self._sources[source.socket.fileno()] = source

    def discard(self, descriptor: int) -> None:
        """Stop serving a connection."""
        self._sources.pop(descriptor, None)

    def run(self, epoll: select.epoll, now_ms: int, until_ms: int) -> StreamIntakeResult:
        """Serve the ready plain connections, round by round.

        The call may wait for data until `until_ms`, because a return after each round would cost more CPU.  It returns
        earlier if the lanes' `next_due_ms` or `publish_ms` has come.  It does not wait if `next_due_ms` is None.  While
        messages come fast, it takes a nap before the next round, unless some sources of the last poll are still unread.
        The beginning of a message stays in the intake until the next round.  The intake returns it earlier if the
        message is longer than `MIN_READ`, or if the intake keeps too many bytes.
        The pure kernel serves only one round, and waits only in a nap before this round.
        """
        if not self._unread:
            self._rate.nap(now_ms, until_ms, self._lanes.next_due_ms)
        reads, unhandled_events = self._read_ready(epoll)
        if not reads:
            return StreamIntakeResult([], None, unhandled_events)
        if not self._have_room([size for read in reads for _, size in read.extents]):
            # `_stop_serving` returns the bytes behind `stop`: if `stop` is `begin`, all bytes of the read.
            return StreamIntakeResult(
                self._stop_serving([read._replace(stop=read.begin) for read in reads]), None, unhandled_events
            )
        leftovers = self._stop_serving([read for read in reads if read.stop < read.end or read.source.incomplete])
        uncounted = self._append(reads, now_ms)
        return StreamIntakeResult(leftovers, uncounted, unhandled_events)

    def _read_ready(self, epoll: select.epoll) -> tuple[list[_Read], list[tuple[int, int]]]:
        """Read each ready source once, if it has the same lanes as the first source that was read.

        Return the reads, and the events that the caller must handle.  The next rounds read the sources that this round
        leaves out, before a new poll, so that all sources have a turn.
        """
        reads: list[_Read] = []
        unhandled_events: list[tuple[int, int]] = []
        begin, is_new_poll = 0, not self._unread
        ready, self._unread = self._unread or epoll.poll(0, MAX_EVENTS), []
        for descriptor, events in ready:
            source = self._sources.get(descriptor)
            if source is None or events != select.EPOLLIN:
                if is_new_poll:  # an older event may be outdated; if not, the next poll reports it again
                    unhandled_events.append((descriptor, events))
                continue
            received_at = begin + len(source.incomplete)
            if received_at + MIN_READ > len(self._buffer) or (reads and source.lanes is not reads[0].source.lanes):
                self._unread.append((descriptor, events))  # no room in the buffer, or the source has other lanes
                continue
            end = self._receive(source, received_at)
            if end > received_at:
                self._buffer[begin:received_at] = source.incomplete
                extents, stop, _, _ = split_stream(self._buffer, begin, end, self._max_size)
                reads.append(_Read(source, extents, begin, stop, end))
                begin = end
            elif is_new_poll:
                unhandled_events.append((descriptor, events))
        return reads, unhandled_events

    def _receive(self, source: StreamSource, begin: int) -> int:
        """Receive into the buffer at offset `begin`, and return the end of the received bytes.

        After an error and at the end of the stream, return `begin`.  The caller of `run` then gets the event, receives
        the same error or end from the connection, and handles it.
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
        """Stop serving the sources of these reads; return each source with its bytes behind the read's `stop`."""
        for read in reads:
            self.discard(read.source.socket.fileno())
        return [(read.source, bytes(self._buffer[read.stop : read.end])) for read in reads]

    def _have_room(self, sizes: list[int]) -> bool:
        """Return True if there is room for all messages of these sizes, or if clients do not wait for room.

        If clients do not wait, messages without room may be discarded.
        """
        if not self._clients_wait or not sizes:
            return True
        return room_for(self._pool, chunks_for(max(sizes)), len(sizes)) == len(sizes)

    def _append(self, reads: list[_Read], now_ms: int) -> UncountedBatch | None:
        """Append the messages of all reads and count them; if the caller must count them, return the batch instead."""
        extents = [extent for read in reads for extent in read.extents]
        self._rate.add(len(extents), sum(read.end - read.begin for read in reads))
        if not extents:
            return None
        sources = [read.source.flush_group.number for read in reads for _ in read.extents]
        first_arrival = self._row.counted
        self._row.begin_batch()
        lanes = reads[0].source.lanes or self._lanes
        lanes.wall_offset_ms = self._lanes.wall_offset_ms  # the worker updates it only in its own lanes
        ingested = lanes.ingest(self._buffer, extents, first_arrival, now_ms, sources=sources)
        if ingested.rejections or ingested.no_room or lanes.has_replaced:
            return UncountedBatch([(read.source, read.extents) for read in reads], ingested)
        increments = {
            self._counters.received: len(extents),
            self._counters.any_partition: ingested.any_partition_count,
            self._counters.partition_key: ingested.partition_key_count,
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
_BARRIER: Final = 258  # API key
_FENCES: Final = frozenset({260, 261})  # API keys of the frames that begin and end a fenced attempt


@unique
class SplitStop(IntEnum):
    """The reason why a split stopped."""

    MORE = 0
    """The remaining bytes are the beginning of a message, or there are no remaining bytes."""
    INVALID_SIZE = 1
    """The next size is smaller than a size field, so the position of the message behind it is unknown."""
    TOO_LARGE = 2
    """The next size is above the limit; not all bytes of this message may be there."""
    BARRIER = 3
    """The next frame is a complete barrier."""
    FENCE = 4
    """The next frame is complete, and begins or ends a fenced attempt."""


class StreamSplit(NamedTuple):
    """The messages that a split has found, as (offset, length), the offset where the split stopped, and the reason.

    `size` is the size of the message or frame at this offset; 0 = not known yet.
    """

    extents: list[tuple[int, int]]
    at: int
    stop: SplitStop
    size: int


def split_stream(buffer: memoryview, at: int, end: int, max_size: int) -> StreamSplit:
    """Split the bytes from `at` to `end`; a message may have at most `max_size` bytes, its size field included.

    A message has the same bytes as in a datagram; `parse` validates it later.  Barriers and the frames that begin or
    end fenced attempts are not messages.  The split stops before such a frame, because the caller treats the messages
    before it and behind it differently.
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
    """Add complete messages with a header to `extents`; return the offset of the first bytes of any other kind."""
    unpack, header_size = _HEADER.unpack_from, _HEADER.size
    while at + header_size <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header_size <= size <= max_size or at + size > end or api_key == _BARRIER or api_key in _FENCES:
            break
        extents.append((at, size))
        at += size
    return at


def _find_stop(buffer: memoryview, at: int, end: int, max_size: int) -> tuple[SplitStop | None, int]:
    """Return the reason to stop at `at`, and the size there.

    The reason is None for a complete message that is too short for a header: it is added, and rejected later.
    """
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
