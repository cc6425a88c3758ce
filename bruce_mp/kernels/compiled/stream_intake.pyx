"""Serve plain stream connections, round by round: see `kernels/pure/stream_intake.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from bruce_mp.kernels.compiled.arrival_rate cimport ArrivalRate
from bruce_mp.kernels.compiled.intake cimport monotonic_us, read_wait_limits, sleep_us
from bruce_mp.kernels.compiled.lanes cimport IngestBatch, WaitLimits, append_groups, begin_batch, longest_wait_ms
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.rows cimport commit_counted_batch
from bruce_mp.kernels.compiled.wire cimport *

from bruce_mp.kernels.pure import stream_intake as pure
from bruce_mp.kernels.pure.stream_intake import SplitStop, StreamSplit
from bruce_mp.slab import layout
from bruce_mp.slab.room import chunks_for, room_for


cdef extern from "<sys/epoll.h>":
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    uint32_t EPOLLIN
    int epoll_wait(int, epoll_event *, int, int) nogil


cdef extern from "<sys/socket.h>":
    int MSG_DONTWAIT
    ssize_t recv(int, void *, size_t, int) nogil


cdef enum:
    MAX_HELD_BYTES = 1 << 20   # maximum size of all `incomplete` that the intake holds
    EVENTS = 512
    COUNTERS = 5         # number of counters in `StreamCounters` without `reads` and `got_data`

assert EVENTS == pure.MAX_EVENTS

cdef int64_t MIN_READ = pure.MIN_READ, MAX_READ = pure.MAX_READ
cdef uint64_t ARRIVAL_STREAM = layout.ARRIVAL_STREAM
cdef int ARRIVAL_SOURCE_BITS = layout.ARRIVAL_SOURCE_BITS


cdef enum:
    SIZE_BYTES = 4
    HEADER_BYTES = 8     # size, API key, version
    BARRIER_KEY = 258
    BEGIN_ATTEMPT_KEY = 260
    END_ATTEMPT_KEY = 261


cdef enum:               # the values of `SplitStop`, and WHOLE
    WHOLE = -1           # no reason to stop: the next bytes are a whole message
    MORE = 0
    INVALID_SIZE = 1
    TOO_LARGE = 2
    BARRIER = 3
    FENCE = 4


cdef int find_stop(uint8_t *base, int64_t at, int64_t end, int64_t max_size, int64_t *size) noexcept nogil:
    """Return the reason to stop at `at`, or WHOLE; store the size of the message or frame there, 0 = not known yet."""
    cdef int key
    size[0] = 0
    if at + SIZE_BYTES > end:
        return MORE
    size[0] = <int32_t>big32(base + at)
    if size[0] < SIZE_BYTES:
        return INVALID_SIZE
    if size[0] > max_size:
        return TOO_LARGE
    if at + size[0] > end:
        return MORE
    key = big16(base + at + 4) if size[0] >= HEADER_BYTES else 0
    if key == BARRIER_KEY:
        return BARRIER
    if key == BEGIN_ATTEMPT_KEY or key == END_ATTEMPT_KEY:
        return FENCE
    return WHOLE


def split_stream(buffer, int64_t at, int64_t end, int64_t max_size):
    cdef Py_buffer source
    cdef int64_t size = 0
    cdef int stop
    cdef list extents = []
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or end > source.len:
            raise ValueError("The bytes to split lie outside of the buffer.")
        while True:
            stop = find_stop(<uint8_t *>source.buf, at, end, max_size, &size)
            if stop != WHOLE:
                return StreamSplit(extents, at, SplitStop(stop), size)
            extents.append((at, size))
            at += size
    finally:
        PyBuffer_Release(&source)


cdef class StreamSource:
    """See `kernels.pure.stream_intake.StreamSource`."""

    cdef readonly object socket, flush_group, lanes
    cdef readonly bytes incomplete
    cdef bint is_held        # True if the source is in `Round.held`
    cdef readonly int kind
    cdef uint64_t group_number
    cdef int64_t received    # number of messages that `flush_group.received` does not include yet

    def __init__(self, connection, flush_group, int kind, bytes incomplete=b"", lanes=None):
        self.socket, self.flush_group, self.kind = connection, flush_group, kind
        self.incomplete, self.lanes = incomplete, lanes
        self.group_number = flush_group.number


cdef struct Extent:           # a message in the buffer
    int64_t at, size


cdef struct Read:            # the data of a source in the buffer
    int first, count         # index of its first message in `Round.extents`, and number of its messages
    int64_t begin, stop, end   # offsets in the buffer; `stop` is the end of the last whole message
    bint is_special          # True if the caller must handle the bytes behind `stop` before the source is read again


cdef class Round:
    """The reads of a round and their messages."""

    cdef epoll_event events[EVENTS]   # of the last poll; no round has handled the first `unread` events yet
    cdef int unread          # number of events that the next rounds handle before a new poll
    cdef Read reads[EVENTS]
    cdef list sources        # the source of each read
    cdef object lanes        # the lanes of all sources; None = the lanes of the worker
    cdef Extent *extents     # the messages of all reads
    cdef int capacity, count   # of `extents`
    cdef int64_t largest_size, size   # bytes of the largest message, bytes of all reads
    cdef list unhandled_events   # (descriptor, events) for the caller
    cdef list held           # the sources with an `incomplete` that the caller does not know
    cdef int64_t held_bytes  # size of these

    def __cinit__(self):
        self.held = []

    def __dealloc__(self):
        free(self.extents)

    cdef int clear(self) except -1:
        """Forget the reads of the last round, but not the events and the held sources."""
        self.sources = []
        self.lanes = None
        self.count = 0
        self.largest_size = self.size = 0
        self.unhandled_events = []
        return 0

    cdef int split(self, uint8_t *base, Read *read, int64_t max_size) except -1:
        """Add the whole messages of a read to `extents`."""
        cdef int64_t size
        cdef int stop
        read.first, read.stop = self.count, read.begin
        while True:
            stop = find_stop(base, read.stop, read.end, max_size, &size)
            if stop != WHOLE:
                break
            if self.count == self.capacity:
                self.grow()
            self.extents[self.count].at, self.extents[self.count].size = read.stop, size
            self.largest_size = max(self.largest_size, size)
            self.count += 1
            read.stop += size
        read.count = self.count - read.first
        read.is_special = stop != MORE or size > MIN_READ
        self.size += read.end - read.begin
        return 0

    cdef int grow(self) except -1:
        cdef int capacity = max(1024, 2 * self.capacity)
        cdef Extent *extents = <Extent *>realloc(self.extents, capacity * sizeof(Extent))
        if extents == NULL:
            raise MemoryError
        self.extents, self.capacity = extents, capacity
        return 0


class StreamIntake(pure.StreamIntake):
    """See `kernels.pure.stream_intake.StreamIntake`."""

    rate_type = ArrivalRate

    def __init__(self, lanes, pool, row, buffer, *, counters):
        super().__init__(lanes, pool, row, buffer, counters=counters)
        if max(*counters[:3], *counters.forwarded, *counters.reads, *counters.got_data) >= ROW_COUNTER_CAPACITY:
            raise ValueError("The slab has no such counters.")
        self._round = Round()

    def run(self, epoll, int64_t now_ms, int64_t until_ms):
        lanes = self._lanes
        cdef Round served = self._round
        cdef IngestBatch batch = lanes._batch, round_batch
        cdef WaitLimits *limits = &batch.limits
        cdef ArrivalRate rate = self._rate
        cdef Memory memory
        cdef Py_buffer buffer
        cdef int descriptor = epoll.fileno(), event_count, left_ms
        cdef int64_t offset_ms = now_ms - monotonic_us() // 1000  # the caller's clock minus the monotonic one
        cdef int64_t now_us, nap_us, publish_ms = lanes.publish_ms
        cdef bint is_new_poll, must_return
        cdef list counted_sources = []  # the sources with a `received` above 0
        read_wait_limits(lanes, batch)
        left_ms = longest_wait_ms(limits, until_ms, now_ms)
        attach(lanes._slab, &memory)
        try:
            PyObject_GetBuffer(self._buffer, &buffer, PyBUF_WRITABLE)
        except BaseException:
            release(&memory)
            raise
        try:
            while True:
                is_new_poll = served.unread == 0
                if is_new_poll:
                    with nogil:
                        event_count = epoll_wait(descriptor, served.events, EVENTS, left_ms)
                else:
                    event_count = served.unread
                now_us = monotonic_us()
                now_ms = now_us // 1000 + offset_ms
                read_ready(self, served, event_count, is_new_poll, &memory, &buffer)
                if not served.sources:
                    return result_of(self, served)
                if not have_room(self, served):
                    rewind_reads(served)
                    hold_rests(served, &buffer)
                    return result_of(self, served)
                must_return = hold_rests(served, &buffer)
                rate.add(served.count, served.size)
                if served.count:
                    round_lanes = lanes if served.lanes is None else served.lanes
                    round_batch = round_lanes._batch
                    round_batch.wall_offset_ms = batch.wall_offset_ms  # nothing else updates it in an attempt's lanes
                    append_round(round_lanes, round_batch, served, &memory, &buffer, self._row._at, now_ms)
                    if round_batch.rejections or round_batch.no_room or round_lanes.has_replaced:
                        return result_of(self, served, uncounted_batch(served, round_batch))
                    count_round(self, round_batch, served, &memory, counted_sources)
                if batch.are_limits_stale:
                    read_wait_limits(lanes, batch)
                    publish_ms = lanes.publish_ms
                left_ms = longest_wait_ms(limits, until_ms, now_ms)
                if must_return or served.unhandled_events or now_ms >= publish_ms or not left_ms:
                    return result_of(self, served)
                nap_us = 0 if served.unread else rate.nap_us(now_us, <int64_t>left_ms * 1000)
                if nap_us:
                    sleep_us(nap_us)
                    now_ms = monotonic_us() // 1000 + offset_ms
                    left_ms = longest_wait_ms(limits, until_ms, now_ms)
        finally:
            for source in counted_sources:  # `count_round` has not added these messages to their flush groups
                source.flush_group.received += (<StreamSource>source).received
                (<StreamSource>source).received = 0
            PyBuffer_Release(&buffer)
            release(&memory)


cdef int read_ready(
    intake, Round served, int event_count, bint is_new_poll, Memory *memory, Py_buffer *buffer
) except -1:
    """See `_read_ready` of the base class."""
    cdef dict sources = intake._sources
    cdef uint8_t *base = <uint8_t *>buffer.buf
    cdef uint64_t row_at = intake._row._at
    cdef uint64_t *counters = <uint64_t *>(<uint8_t *>memory.buffer.buf + row_at + ROW_COUNTERS)
    cdef int64_t begin = 0, max_size = intake._max_size
    cdef ssize_t received, incomplete_size
    cdef StreamSource source
    cdef int index, read_count = 0
    cdef Read *read
    served.clear()
    served.unread = 0
    for index in range(event_count):
        source = sources.get(served.events[index].data.fd)
        if source is None or served.events[index].events != EPOLLIN:
            if is_new_poll:  # an older event may be outdated; if not, the next poll reports it again
                served.unhandled_events.append((served.events[index].data.fd, served.events[index].events))
            continue
        incomplete_size = len(source.incomplete)
        if begin + incomplete_size + MIN_READ > buffer.len or (read_count and source.lanes is not served.lanes):
            served.events[served.unread] = served.events[index]
            served.unread += 1
            continue
        counters[<int>intake._counters.reads[source.kind]] += 1
        received = recv(
            served.events[index].data.fd,
            base + begin + incomplete_size,
            min(MAX_READ, buffer.len - begin - incomplete_size),
            MSG_DONTWAIT,
        )
        if received <= 0:
            if is_new_poll:
                served.unhandled_events.append((served.events[index].data.fd, served.events[index].events))
            continue
        counters[<int>intake._counters.got_data[source.kind]] += 1
        memcpy(base + begin, <char *>source.incomplete, incomplete_size)
        read = &served.reads[read_count]
        read.begin, read.end = begin, begin + incomplete_size + received
        served.lanes = source.lanes
        served.split(base, read, max_size)
        served.sources.append(source)
        begin = read.end
        read_count += 1
    return 0


cdef bint have_room(intake, Round served) except -1:
    """See `_have_room` of the base class."""
    if not served.count or not intake._clients_wait:
        return True
    return room_for(intake._pool, chunks_for(served.largest_size), served.count) == served.count


cdef void rewind_reads(Round served):
    """Move the `stop` of each read to its `begin`, so that `hold_rests` holds all bytes of the round."""
    cdef int index
    for index in range(len(served.sources)):
        served.reads[index].stop = served.reads[index].begin


cdef bint hold_rests(Round served, Py_buffer *buffer) except -1:
    """Keep the bytes behind the `stop` of each read as the `incomplete` of its source, for the next rounds.

    Return True if the caller of the intake must handle them before the next round.
    """
    cdef uint8_t *base = <uint8_t *>buffer.buf
    cdef Read *read
    cdef StreamSource source
    cdef bytes rest
    cdef bint must_return = False
    cdef int index
    for index in range(len(served.sources)):
        read = &served.reads[index]
        source = served.sources[index]
        if read.stop == read.end and not source.incomplete:
            continue
        rest = (<char *>base)[read.stop : read.end]
        if not source.is_held:
            source.is_held = True
            served.held.append(source)
        else:
            served.held_bytes -= len(source.incomplete)
        served.held_bytes += len(rest)
        source.incomplete = rest
        must_return = must_return or read.is_special
    return must_return or served.held_bytes > MAX_HELD_BYTES


cdef object result_of(intake, Round served, uncounted=None):
    """Return the result of `run`, and stop serving the held sources."""
    cdef StreamSource source
    cdef list leftovers = []
    for source in served.held:
        source.is_held = False
        intake.discard(source.socket.fileno())
        leftovers.append((source, source.incomplete))
    served.held, served.held_bytes = [], 0
    return pure.StreamIntakeResult(leftovers, uncounted, served.unhandled_events)


cdef int append_round(
    lanes, IngestBatch batch, Round served, Memory *memory, Py_buffer *buffer, uint64_t row_at, int64_t now_ms
) except -1:
    """Append all messages of a round; `count_round` or the caller commits the batch."""
    cdef uint8_t *base = <uint8_t *>memory.buffer.buf
    cdef uint8_t *row = base + row_at
    cdef uint64_t first_arrival = load64(row + ROW_COUNTED)
    cdef uint64_t group_number
    cdef int index, slot
    begin_batch(lanes, batch, base, row)
    batch.begin(served.count)
    for index in range(len(served.sources)):
        group_number = (<StreamSource>served.sources[index]).group_number
        for slot in range(served.reads[index].first, served.reads[index].first + served.reads[index].count):
            batch.add(
                slot,
                <uint8_t *>buffer.buf + served.extents[slot].at,
                served.extents[slot].size,
                ARRIVAL_STREAM | (first_arrival + slot) << ARRIVAL_SOURCE_BITS | group_number,
            )
    append_groups(lanes, batch, base, now_ms)
    return 0


cdef object uncounted_batch(Round served, IngestBatch batch):
    """Return an appended round as an `UncountedBatch`, for the caller to count."""
    cdef list parts = []
    cdef int index, slot
    for index in range(len(served.sources)):
        first, end = served.reads[index].first, served.reads[index].first + served.reads[index].count
        extents = [(served.extents[slot].at, served.extents[slot].size) for slot in range(first, end)]
        parts.append((served.sources[index], extents))
    return pure.UncountedBatch(parts, batch.outcome())


cdef int count_round(intake, IngestBatch batch, Round served, Memory *memory, list counted_sources) except -1:
    """Count a round after all its messages have been appended."""
    cdef uint64_t counters[COUNTERS]
    cdef uint64_t amounts[COUNTERS]
    cdef uint64_t row_at = intake._row._at
    cdef uint8_t *row = <uint8_t *>memory.buffer.buf + row_at
    cdef StreamSource source
    cdef int index
    counters[0], counters[1], counters[2], (counters[3], counters[4]) = intake._counters[:4]  # `forwarded` is a pair
    amounts[0], amounts[1], amounts[2] = served.count, batch.any_partition_count, batch.partition_key_count
    amounts[3] = amounts[4] = 0
    for index in range(len(served.sources)):
        source = served.sources[index]
        amounts[3 + source.kind] += served.reads[index].count
        if not source.received:
            counted_sources.append(source)
        source.received += served.reads[index].count
    commit_counted_batch(memory, row, counters, amounts, COUNTERS, load64(row + ROW_COUNTED) + served.count)
    return 0
