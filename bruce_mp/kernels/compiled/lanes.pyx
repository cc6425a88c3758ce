"""Parse and validate a batch, append it to lanes: see `kernels/pure/parse.py`, `lane.py` and `lanes.py`.

The pure `Lanes`, the base class, decides on the lane of each message and on the close of runs.  A `Target` for each
numbered topic caches the decision.  Messages of such topics are parsed, grouped and appended without a Python object.
Groups that need a decision go through the methods of the base class.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.rows cimport land_plain
from bruce_mp.kernels.compiled.wire cimport *

import os

from bruce_mp.kernels.pure import arrival_rate as pure_pace
from bruce_mp.kernels.pure.intake import DatagramIntake as PureDatagramIntake
from bruce_mp.kernels.pure.intake import Taken
from bruce_mp.kernels.pure.lanes import IDLE_MS, WAKE_SLACK_MS, Ingested, NoRoom
from bruce_mp.kernels.pure.lanes import Lanes as PureLanes
from bruce_mp.kernels.pure.parse import Failure, RejectedMessage
from bruce_mp.slab import layout
from bruce_mp.slab.runs import Segment
from bruce_mp.slab.handover_tickets import HandoverTickets


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <sys/socket.h>
    #include <time.h>
    """
    struct mmsghdr:
        unsigned int msg_len
    struct pollfd:
        int fd
        short events
        short revents
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    struct timeval:
        long tv_sec
        long tv_usec
    int MSG_DONTWAIT
    int MSG_WAITFORONE
    int POLLIN
    int POLLRDHUP
    int SOL_SOCKET
    int SO_RCVTIMEO
    int clock_gettime(int, timespec *) nogil
    int nanosleep(timespec *, timespec *) nogil
    int poll(pollfd *, unsigned long, int) nogil
    int recvmmsg(int, mmsghdr *, unsigned int, int, void *) nogil
    int setsockopt(int, int, int, void *, unsigned int) nogil


cdef enum:
    ANY_PARTITION = 256
    PARTITION_KEY = 257
    GENERIC_HEADER = 8   # size, API key, version
    WITH_HEADERS = 0x10000   # version and flags of a message with record headers
    LONGEST_HEADERS = 0xFFFF
    MMSGHDR_FLAGS = 48   # where the kernel stores msg_flags
    CUT = 0x20           # MSG_TRUNC
    COARSE_MS = 8        # possible lateness of a socket's own timer
    NONE = -1


cdef int64_t WINDOW_US = pure_pace.WINDOW_US
cdef int64_t AWAKE_EVERY_US = pure_pace.AWAKE_EVERY_US
cdef int64_t LEAST_MESSAGES = pure_pace.LEAST_MESSAGES
cdef int64_t LEAST_US = pure_pace.LEAST_US
cdef int64_t HEAD_BYTES = pure_pace.HEAD_BYTES
cdef uint64_t ARRIVAL_STREAM = layout.ARRIVAL_STREAM
cdef int ARRIVAL_SOURCE_BITS = layout.ARRIVAL_SOURCE_BITS


cdef struct Item:        # a sound message
    uint64_t arrival
    int64_t timestamp
    uint8_t *topic
    uint8_t *key
    uint8_t *value
    uint8_t *headers
    uint32_t partition_key, topic_size, key_size, value_size, headers_size
    int next             # next item of the same group
    bint is_replaced     # true if `stamp` replaced `given`, the client's timestamp; set only by `stamp`
    int64_t given


cdef struct Group:       # messages of one topic and type, in order
    int first, last
    bint keyed


cdef struct Chain:       # messages of a group for one partition
    uint64_t batch       # in which first, last and is_shared were set
    int first, last
    bint is_shared       # true if its lane is shared


# --- parse -----------------------------------------------------------------------------------------------------------
cdef int parse_one(uint8_t *at, int64_t length, Item *item) noexcept nogil:
    """Store a message's fields and return its API key; 0 for a message that is not sound.

    Each number is read once, because another process may change the bytes during the call.
    """
    cdef uint8_t *end = at + length
    cdef int api_key, topic_size
    cdef int64_t key_size, value_size, headers_size
    cdef uint32_t version
    if length < GENERIC_HEADER + 4 or <int32_t>big32(at) != length:
        return 0
    api_key = big16(at + 4)
    if api_key != ANY_PARTITION and api_key != PARTITION_KEY:
        return 0
    version = big32(at + 6)
    if version & ~<uint32_t>WITH_HEADERS:
        return 0
    at += 10
    item.partition_key = 0
    if api_key == PARTITION_KEY:
        if end - at < 6:
            return 0
        item.partition_key = big32(at)
        at += 4
    topic_size = big16(at)
    at += 2
    if topic_size <= 0 or end - at < topic_size + 16:
        return 0
    item.topic, item.topic_size = at, topic_size
    at += topic_size
    item.timestamp = big64(at)
    key_size = <int32_t>big32(at + 8)
    at += 12
    if key_size < 0 or end - at < key_size + 4:
        return 0
    item.key, item.key_size = at, key_size
    at += key_size
    value_size = <int32_t>big32(at)
    at += 4
    if value_size < 0 or end - at < value_size:
        return 0
    item.value, item.value_size = at, value_size
    at += value_size
    item.headers, item.headers_size = at, 0
    if version:
        if end - at < 4:
            return 0
        headers_size = <int32_t>big32(at)
        at += 4
        if headers_size < 0 or headers_size > LONGEST_HEADERS or end - at != headers_size or walk_headers(at, end):
            return 0
        item.headers, item.headers_size = at, headers_size
        return api_key
    return api_key if at == end else 0


cdef object rejection_of(int slot, uint8_t *at, int64_t length):
    """Return the rejection for the first check that fails."""
    cdef int api_key, version
    if length < GENERIC_HEADER or <int32_t>big32(at) != length:
        return RejectedMessage(slot, Failure.MALFORMED, 0, 0)
    api_key, version = big16(at + 4), big16(at + 6)
    if api_key != ANY_PARTITION and api_key != PARTITION_KEY:
        return RejectedMessage(slot, Failure.UNSUPPORTED_API_KEY, api_key, version)
    if version != 0 and version != 1:
        return RejectedMessage(slot, Failure.UNSUPPORTED_VERSION, api_key, version)
    return RejectedMessage(slot, Failure.MALFORMED, api_key, version)


cdef inline uint64_t hash_of(uint8_t *name, uint64_t size) noexcept nogil:
    cdef uint64_t hashed = size * <uint64_t>0x9E3779B97F4A7C15U
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, name, 8)
        hashed = (hashed ^ word) * <uint64_t>0x9E3779B97F4A7C15U
        hashed ^= hashed >> 29
        name += 8
        size -= 8
    word = 0
    memcpy(&word, name, size)
    hashed = (hashed ^ word) * <uint64_t>0x9E3779B97F4A7C15U
    return hashed ^ (hashed >> 32)


# --- one lane --------------------------------------------------------------------------------------------------------
cdef class Lane:
    """An open chunk and the open run at its end: `kernels.pure.lane.Lane`."""

    cdef object slab, _head
    cdef bytes name
    cdef public int64_t chunk, span, runs, records, due_ms, used_ms
    cdef public bint is_explicit
    cdef object _window
    cdef bint has_window, is_clamp
    cdef int64_t before_ms
    cdef uint64_t width_ms   # size of the window
    cdef int64_t linger_ms   # linger of its runs; 0 = none, or not yet known
    cdef uint64_t start, run_at, end, limit, payload
    cdef uint32_t generation, topic, flags, head_size, partition_count, largest
    cdef int partition_index
    cdef int64_t min_timestamp

    def __init__(self, slab, head):
        self.slab = slab
        self.head = head
        self.chunk = -1
        self.span = 1

    @property
    def head(self):
        return self._head

    @head.setter
    def head(self, head):
        self._head = head
        self.name = head.name
        self.topic, self.flags, self.head_size = head.topic, head.flags, head.size
        self.partition_index, self.partition_count = head.partition_index, head.partition_count

    @property
    def window(self):
        return self._window

    @window.setter
    def window(self, window):
        self._window, self.has_window = window, window is not None
        if window is not None:
            self.before_ms, self.is_clamp = window.before_ms, window.is_clamp
            self.width_ms = window.before_ms + window.after_ms

    def enter(self, chunk, span):
        cdef Memory memory
        cdef uint8_t *base
        attach(self.slab, &memory)
        base = <uint8_t *>memory.buffer.buf
        self.chunk, self.span = chunk, span
        self.start = self.slab.chunk_at(chunk)
        self.generation = load32(base + self.start + CHUNK_GENERATION)
        self.end = self.start + CHUNK_HEADER
        self.limit = self.start + <uint64_t>span * CHUNK_BYTES
        self.runs = 0
        release(&memory)

    def take_over(self, Lane lender):
        self.chunk, self.span, self.runs = lender.chunk, lender.span, lender.runs
        self.start, self.generation = lender.start, lender.generation
        self.end, self.limit = lender.end, lender.limit
        lender.chunk = -1

    def can_lend(self, uint64_t size):
        return self.chunk >= 0 and self.end + size <= self.limit

    def close_run(self, tickets):
        tickets.hand_over(self.run_at)
        return self.forget_run()

    cdef object hand_over(self, uint8_t *base, uint64_t row_at):
        """Do the work of `close_run` with a `HandoverTickets`: store the ticket, the state word, then the row."""
        cdef uint64_t ticket = load64(base + row_at) + 1
        store64(base + self.run_at + RUN_TICKET, ticket)
        store32(base + self.run_at, FILLED)
        store64(base + row_at, ticket)
        return self.forget_run()

    cdef object forget_run(self):
        """Mark the lane as without an open run; return the segment of the last one."""
        cdef uint64_t run = self.run_at - self.start
        segment = tuple.__new__(
            Segment, (self.chunk, self.generation, run, run + self.head_size, self.records, self.payload)
        )
        self.records = self.due_ms = 0
        return segment

    cdef bint has_room(self, uint64_t size) noexcept:
        """Report if a record fits into the open run, or into a new one if none is open."""
        if self.chunk < 0:
            return False
        return self.end + size + (0 if self.records else self.head_size) <= self.limit

    cdef int append(self, uint8_t *base, Item *items, int first, int64_t now_ms) noexcept:
        """Append messages of a group while they fit; return the first that does not, or NONE.  The first must fit."""
        cdef uint64_t size
        cdef uint64_t last_arrival = 0
        cdef int index = first
        cdef Item *item
        if not self.records:
            self.open_run(base, &items[first], now_ms)
        while index != NONE:
            item = &items[index]
            size = record_size(item)
            if self.end + size > self.limit:
                break
            self.put(base + self.end, item)
            self.end += size
            self.records += 1
            last_arrival = item.arrival
            index = item.next
        store64(base + self.start + CHUNK_LAST_ARRIVAL, last_arrival)
        store32(base + self.run_at + RUN_PAYLOAD, <uint32_t>self.payload)
        store32(base + self.run_at + RUN_LARGEST, self.largest)
        store64(base + self.run_at + RUN_MIN_TIMESTAMP, <uint64_t>self.min_timestamp)
        store64(base + self.run_at + RUN_COUNT, <uint64_t>self.records | (self.end - self.run_at) << 32)
        return index

    cdef void put(self, uint8_t *at, Item *item) noexcept:
        """Write a record behind the open run, which does not include it yet."""
        cdef uint64_t size = payload_of(item)
        cdef uint8_t *body = at + RECORD_HEADER
        store32(at, 0)
        store32(at + RECORD_FLAGS, self.flags | <uint32_t>self.is_explicit << 8 * (RECORD_EXPLICIT - RECORD_FLAGS))
        store32(at + RECORD_KEY_LENGTH, item.key_size)
        store32(at + RECORD_VALUE_LENGTH, item.value_size)
        store32(at + RECORD_PARTITION_KEY, item.partition_key)
        store32(at + RECORD_PARTITION, <uint32_t>-1)
        store32(at + RECORD_SEQUENCE, <uint32_t>-1)
        store32(at + RECORD_EPOCH, 0xFFFF | item.headers_size << 16)
        store64(at + RECORD_TIMESTAMP, <uint64_t>item.timestamp)
        store64(at + RECORD_ARRIVAL, item.arrival)
        memcpy(body, item.key, item.key_size)
        memcpy(body + item.key_size, item.value, item.value_size)
        memcpy(body + item.key_size + item.value_size, item.headers, item.headers_size)
        memset(body + size, 0, <uint64_t>-<int64_t>size & 7)
        self.payload += size
        self.largest = <uint32_t>size if size > self.largest else self.largest
        if item.timestamp < self.min_timestamp:
            self.min_timestamp = item.timestamp

    cdef void open_run(self, uint8_t *base, Item *item, int64_t now_ms) noexcept:
        cdef uint8_t *at = base + self.end
        memset(at, 0, self.head_size)
        store32(at + RUN_GENERATION, self.generation)
        store32(at + RUN_SIZE, self.head_size)
        store32(at + RUN_TOPIC, self.topic)
        store32(at + RUN_PARTITION, <uint32_t>-1)
        store32(at + RUN_SEQUENCE, <uint32_t>-1)
        store16(at + RUN_EPOCH, 0xFFFF)
        store8(at + RUN_FLAGS, <uint8_t>self.flags)
        store64(at + RUN_ARRIVED_MS, <uint64_t>now_ms)
        store32(at + RUN_PARTITION_INDEX, <uint32_t>self.partition_index)
        store32(at + RUN_PARTITION_COUNT, self.partition_count)
        store16(at + RUN_NAME_LENGTH, <uint16_t>PyBytes_GET_SIZE(self.name))
        store32(at + RUN_MAGIC_AT, RUN_MAGIC)
        store64(at + RUN_FIRST_ARRIVAL, item.arrival)
        store64(at + RUN_MIN_TIMESTAMP, <uint64_t>item.timestamp)
        memcpy(at + RUN_HEADER, PyBytes_AS_STRING(self.name), PyBytes_GET_SIZE(self.name))
        self.run_at = self.end
        self.end += self.head_size
        self.payload = self.largest = 0
        self.min_timestamp = item.timestamp
        self.runs += 1
        store32(base + self.start + CHUNK_RUNS, <uint32_t>self.runs)


cdef inline uint64_t payload_of(Item *item) noexcept nogil:
    return <uint64_t>item.key_size + item.value_size + item.headers_size


cdef inline uint64_t record_size(Item *item) noexcept nogil:
    return (RECORD_HEADER + payload_of(item) + 7) & <uint64_t>~7


# --- a batch ---------------------------------------------------------------------------------------------------------
cdef class Target:
    """A numbered topic: its lanes, and its groups in the present batch."""

    cdef bytes name
    cdef uint64_t hashed
    cdef Lane any_lane
    cdef uint64_t partitions # 0: no PartitionKey message has arrived
    cdef list keyed_lanes    # by partition index; None without a lane
    cdef Chain *chains       # by partition index
    cdef object number
    cdef int group_any, group_keyed
    cdef uint64_t batch      # in which the groups were set

    def __dealloc__(self):
        free(self.chains)

    cdef int be_cut_by(self, number, uint64_t partitions) except -1:
        """Route the topic's PartitionKey messages to lanes by partition."""
        self.number, self.keyed_lanes = number, [None] * <Py_ssize_t>partitions
        self.chains = <Chain *>calloc(partitions, sizeof(Chain))
        if self.chains == NULL:
            raise MemoryError
        self.partitions = partitions
        return 0


cdef struct Times:           # limits from the lanes
    int64_t due_ms           # of the first run; 0 = no run is open, so waiting needs no limit
    int64_t patience_ms
    int late_ms


cdef class Work:
    """The grouped messages of a batch, and the known targets."""

    cdef Item *items
    cdef Group *groups
    cdef uint64_t *order     # partitions of a group
    cdef int room, count, group_count, any_partition, partition_key
    cdef list rejections, no_room
    cdef bint is_explicit    # clients mark the timestamps of the batch as explicit
    cdef int64_t clock_step_ms   # lead of the wall clock
    cdef bint is_urgent      # a closed run must be handed over now
    cdef int64_t bytes       # size of the messages on the wire
    cdef bint has_asked      # the pure lanes were called, so `times` may be out of date
    cdef Times times
    cdef uint32_t topics_version
    cdef uint64_t batch
    cdef PyObject **table    # targets by hash, open addressing
    cdef uint64_t mask
    cdef list targets

    def __cinit__(self):
        self.mask = 63
        self.table = <PyObject **>malloc((self.mask + 1) * sizeof(PyObject *))
        if self.table == NULL:
            raise MemoryError
        self.rejections, self.no_room = [], []
        self.forget()

    def __dealloc__(self):
        free(self.items)
        free(self.groups)
        free(self.order)
        free(self.table)

    def forget(self):
        """Discard all targets after a change of the lanes.  Not allowed within a batch, which uses its targets."""
        memset(self.table, 0, (self.mask + 1) * sizeof(PyObject *))
        self.targets = []

    cdef int learn(self, bytes name) except -1:
        """Add a numbered topic; its lanes are added at their first use."""
        cdef Target target = Target.__new__(Target)
        target.name = name
        target.hashed = hash_of(<uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        self.targets.append(target)
        if <uint64_t>len(self.targets) * 2 > self.mask:
            self.grow()
        else:
            self.enter(target)
        return 0

    cdef void enter(self, Target target):
        cdef uint64_t slot = target.hashed & self.mask
        while self.table[slot] != NULL:
            slot = (slot + 1) & self.mask
        self.table[slot] = <PyObject *>target

    cdef int grow(self) except -1:
        cdef uint64_t size = (self.mask + 1) * 4
        cdef PyObject **table = <PyObject **>realloc(self.table, size * sizeof(PyObject *))
        if table == NULL:
            raise MemoryError
        self.table, self.mask = table, size - 1
        memset(table, 0, size * sizeof(PyObject *))
        for target in self.targets:
            self.enter(target)
        return 0

    cdef PyObject *find(self, uint8_t *name, uint64_t size):
        """Return the target of a topic; NULL for an unknown topic."""
        cdef uint64_t hashed = hash_of(name, size)
        cdef uint64_t slot = hashed & self.mask
        while self.table[slot] != NULL:
            target = <Target>self.table[slot]
            if target.hashed == hashed and <uint64_t>PyBytes_GET_SIZE(target.name) == size:
                if memcmp(PyBytes_AS_STRING(target.name), name, size) == 0:
                    return self.table[slot]
            slot = (slot + 1) & self.mask
        return NULL

    cdef int begin(self, int most) except -1:
        """Prepare for a batch of up to `most` messages."""
        self.batch += 1
        self.count = self.group_count = self.any_partition = self.partition_key = 0
        self.bytes = 0
        if self.rejections or self.no_room:
            self.rejections, self.no_room = [], []
        self.is_urgent = False
        if most <= self.room:
            return 0
        free(self.items)
        free(self.groups)
        free(self.order)
        self.room = 0
        self.items = <Item *>malloc(most * sizeof(Item))
        self.groups = <Group *>malloc(most * sizeof(Group))
        self.order = <uint64_t *>malloc(most * sizeof(uint64_t))
        if self.items == NULL or self.groups == NULL or self.order == NULL:
            raise MemoryError
        self.room = most
        return 0

    cdef object outcome(self):
        """Return the result of the batch."""
        return Ingested(self.any_partition, self.partition_key, self.rejections, self.no_room)

    cdef int add(self, int slot, uint8_t *at, int64_t length, uint64_t arrival) except -1:
        """Add a message to its group, or record its rejection."""
        cdef Item *item = &self.items[self.count]
        cdef int api_key = parse_one(at, length, item)
        cdef int group
        if api_key == 0:
            self.rejections.append(rejection_of(slot, at, length))
            return 0
        if api_key == PARTITION_KEY:
            self.partition_key += 1
        else:
            self.any_partition += 1
        item.arrival, item.next = arrival, NONE
        group = self.group_of(item, api_key == PARTITION_KEY)
        if self.groups[group].first == NONE:
            self.groups[group].first = self.count
        else:
            self.items[self.groups[group].last].next = self.count
        self.groups[group].last = self.count
        self.count += 1
        return 0

    cdef int group_of(self, Item *item, bint keyed):
        cdef PyObject *known = self.find(item.topic, item.topic_size)
        cdef Target target
        if known == NULL:
            return self.group_of_stranger(item, keyed)
        target = <Target>known
        if target.batch != self.batch:
            target.batch = self.batch
            target.group_any = target.group_keyed = NONE
        if keyed:
            if target.group_keyed == NONE:
                target.group_keyed = self.new_group(keyed)
            return target.group_keyed
        if target.group_any == NONE:
            target.group_any = self.new_group(keyed)
        return target.group_any

    cdef int group_of_stranger(self, Item *item, bint keyed):
        """Search the groups one by one; few topics are unknown."""
        cdef Item *first
        cdef int index
        for index in range(self.group_count):
            first = &self.items[self.groups[index].first]
            if self.groups[index].keyed == keyed and first.topic_size == item.topic_size:
                if memcmp(first.topic, item.topic, item.topic_size) == 0:
                    return index
        return self.new_group(keyed)

    cdef int new_group(self, bint keyed):
        cdef Group *group = &self.groups[self.group_count]
        group.first = group.last = NONE
        group.keyed = keyed
        self.group_count += 1
        return self.group_count - 1


class Lanes(PureLanes):
    """`kernels.pure.lanes.Lanes`."""

    lane_type = Lane

    def __init__(self, slab, pool, topics, linger_ms, tickets=None, **rules):
        self._work = Work()
        super().__init__(slab, pool, topics, linger_ms, tickets, **rules)
        (<Work>self._work).topics_version = self._topics_version

    @property
    def clock_step_ms(self):
        return (<Work>self._work).clock_step_ms

    @clock_step_ms.setter
    def clock_step_ms(self, int64_t step_ms):
        (<Work>self._work).clock_step_ms = step_ms

    def _notice_topics(self):
        before = self._topics_version
        super()._notice_topics()
        if self._topics_version != before:
            self._work.forget()

    def apply_lingers(self, linger_ms):
        super().apply_lingers(linger_ms)
        for lane in self._lanes.values():
            (<Lane>lane).linger_ms = 0

    def close_due(self, now_ms):
        before = len(self._lanes)
        super().close_due(now_ms)
        if len(self._lanes) != before:
            self._work.forget()

    def _look_at_all(self, int64_t now_ms):
        cdef Memory memory
        cdef Lane lane
        cdef int64_t due_ms = now_ms + WAKE_SLACK_MS, idle_ms = now_ms - IDLE_MS, earliest_ms = 0
        cdef uint64_t row_at = self._tickets.row_at
        cdef bint is_any_silent = False, has_tickets = type(self._tickets) is HandoverTickets
        cdef list idle = [], closed = self._closed
        attach(self._slab, &memory)
        try:
            for key, each in self._lanes.items():
                lane = <Lane>each
                if has_tickets and lane.records and lane.due_ms <= due_ms:
                    closed.append(lane.hand_over(<uint8_t *>memory.buffer.buf, row_at))
                if lane.records and lane.due_ms > due_ms:
                    earliest_ms = min(earliest_ms, lane.due_ms) if earliest_ms else lane.due_ms
                elif not lane.records and lane.used_ms > idle_ms:
                    is_any_silent = True
                elif self._look(lane, now_ms):
                    idle.append(key)
        finally:
            release(&memory)
        if earliest_ms:
            self._wake_by(earliest_ms - self.leeway_ms)
        if is_any_silent:
            self._wake_by((now_ms // IDLE_MS + 1) * IDLE_MS)
        return idle

    def close_all(self):
        super().close_all()
        self._work.forget()

    def ingest(
        self, buffer, places, uint64_t first_arrival, int64_t now_ms, skip=frozenset(), *, sources=None,
        bint is_explicit=False,
    ):
        cdef Work work = self._work
        cdef uint64_t arrival
        cdef Py_buffer source
        cdef int64_t at, length
        cdef int slot
        self._notice_topics()
        work.has_asked = True
        work.begin(len(places))
        PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
        try:
            for slot, (at, length) in enumerate(places):
                if at < 0 or length < 0 or at + length > source.len:
                    raise ValueError(f"Message {slot} lies outside of the buffer.")
                arrival = first_arrival + slot
                if sources is not None:
                    arrival = ARRIVAL_STREAM | arrival << ARRIVAL_SOURCE_BITS | <uint64_t>sources[slot]
                if not skip or arrival not in skip:
                    work.add(slot, <uint8_t *>source.buf + at, length, arrival)
            work.is_explicit = is_explicit
            put_all(self, work, now_ms)
            return work.outcome()
        finally:
            work.is_explicit = False
            PyBuffer_Release(&source)

    def ingest_landed(self, int count, uint32_t longest, int64_t now_ms, skip=frozenset()):
        cdef Work work = self._work
        cdef Memory memory
        cdef Landing landing
        self._notice_topics()
        work.has_asked = True
        attach(self._slab, &memory)
        try:
            landing_of(self._slab.geometry, &memory, count, longest, &landing)
            read_landed(&landing, work, count, skip)
            put_groups(self, work, <uint8_t *>memory.buffer.buf, now_ms)
            return work.outcome()
        finally:
            release(&memory)


cdef struct Landing:     # the landing zone
    uint8_t *at
    uint8_t *headers
    uint8_t *slots
    uint64_t slot_size
    uint32_t longest     # largest size of a datagram


cdef int landing_of(geometry, Memory *memory, int slots, uint32_t longest, Landing *found) except -1:
    """Locate the slots for datagrams.  Raises ValueError for more or larger slots than the landing zone has."""
    cdef uint64_t at = geometry.landing_at, slots_at = geometry.landing_slots_at
    if slots > geometry.landing_slots or longest > geometry.landing_slot_size:
        raise ValueError("The landing zone has no such slots.")
    found.at = <uint8_t *>memory.buffer.buf + at
    found.headers = found.at + LANDING_HEADERS
    found.slots = <uint8_t *>memory.buffer.buf + slots_at
    found.slot_size, found.longest = geometry.landing_slot_size, longest
    return 0


cdef int read_landed(Landing *landing, Work work, int count, skip) except -1:
    """Parse the first `count` datagrams of the landing zone."""
    cdef uint8_t *headers = landing.headers
    cdef uint8_t *data = landing.slots
    cdef uint64_t first_arrival = load64(landing.at + LANDING_BASE_ARRIVAL)
    cdef uint32_t length
    cdef int slot
    work.begin(count)
    for slot in range(count):
        length = load32(headers + MMSGHDR_LENGTH)
        work.bytes += length
        if length > landing.longest or (length == landing.longest and load32(headers + MMSGHDR_FLAGS) & CUT):
            length = 0
        if not skip or first_arrival + slot not in skip:
            work.add(slot, data, length, first_arrival + slot)
        headers += MMSGHDR_BYTES
        data += landing.slot_size
    return 0


cdef int put_all(lanes, Work work, int64_t now_ms) except -1:
    """Append the groups of a batch to their lanes."""
    cdef Memory memory
    attach(lanes._slab, &memory)
    try:
        return put_groups(lanes, work, <uint8_t *>memory.buffer.buf, now_ms)
    finally:
        release(&memory)


cdef int put_groups(lanes, Work work, uint8_t *base, int64_t now_ms) except -1:
    cdef int index
    for index in range(work.group_count):
        put_group(lanes, work, &work.groups[index], base, now_ms)
    return 0


cdef int put_group(lanes, Work work, Group *group, uint8_t *base, int64_t now_ms) except -1:
    cdef Item *first = &work.items[group.first]
    cdef PyObject *known = work.find(first.topic, first.topic_size)
    cdef bytes topic
    cdef Lane lane
    if known != NULL and not group.keyed and (<Target>known).any_lane is not None:
        lane = (<Target>known).any_lane
        return put_chain(lanes, work, lane, (<Target>known).name, group.first, base, now_ms)
    if known != NULL and group.keyed and (<Target>known).partitions:
        return put_by_partition(lanes, work, <Target>known, group, base, now_ms)
    work.has_asked = True
    topic = first.topic[: first.topic_size]
    number = lanes._topics.id_of(topic)
    if number and known == NULL:
        work.learn(topic)
        known = work.find(first.topic, first.topic_size)
    if group.keyed:
        return put_keyed(lanes, work, topic, number, known, group, base, now_ms)
    lane = lanes._lane_for(topic, number, -1, 0) if number else lanes._share(0, topic, keyed=False)
    if known != NULL and not lanes._is_shared(lane):
        (<Target>known).any_lane = lane
    return put_chain(lanes, work, lane, topic, group.first, base, now_ms)


cdef int put_keyed(
    lanes, Work work, bytes topic, number, PyObject *known, Group *group, uint8_t *base, int64_t now_ms
) except -1:
    """Append a topic's first PartitionKey group, or one of a topic without a number or partitions."""
    cdef uint64_t partitions = lanes._partitions_of(number) if number else 0
    if not partitions:
        return put_chain(lanes, work, lanes._share(number, topic, keyed=True), topic, group.first, base, now_ms)
    (<Target>known).be_cut_by(number, partitions)
    return put_by_partition(lanes, work, <Target>known, group, base, now_ms)


cdef int put_by_partition(lanes, Work work, Target target, Group *group, uint8_t *base, int64_t now_ms) except -1:
    """StreamSplit a PartitionKey group by the partitions of its keys and append the parts."""
    cdef int used = cut_group(work, target, group), place
    cdef list kept = target.keyed_lanes
    cdef uint64_t index
    cdef Lane lane
    for place in range(used):
        index = work.order[place]
        if kept[index] is None:
            work.has_asked = True
            kept[index] = lanes._lane_for(target.name, target.number, index, target.partitions)
            target.chains[index].is_shared = lanes._is_shared(kept[index])
    for place in range(used):
        index = work.order[place]
        lane = kept[index]
        if target.chains[index].is_shared:
            kept[index] = None  # another topic may use it in the next batch
        put_chain(lanes, work, lane, target.name, target.chains[index].first, base, now_ms)
    return 0


cdef int cut_group(Work work, Target target, Group *group) noexcept:
    """Chain messages by partition; return the number of partitions, in `work.order` by first appearance."""
    cdef int index = group.first, following, used = 0
    cdef uint64_t partition
    cdef Chain *chain
    while index != NONE:
        following = work.items[index].next
        work.items[index].next = NONE
        partition = work.items[index].partition_key % target.partitions
        chain = &target.chains[partition]
        if chain.batch == work.batch:
            work.items[chain.last].next = index
        else:
            chain.batch, chain.first = work.batch, index
            work.order[used] = partition
            used += 1
        chain.last = index
        index = following
    return used


cdef bint stamp(Work work, Lane lane, int index, int64_t arrived_ms) noexcept:
    """Give messages the timestamps of their records; return True if clamping replaced any: see `Lanes._stamp`."""
    cdef uint64_t earliest = <uint64_t>arrived_ms - <uint64_t>lane.before_ms   # unsigned: no difference overflows
    cdef bint is_any = False
    cdef Item *item
    while index != NONE:
        item = &work.items[index]
        item.is_replaced = <uint64_t>item.timestamp - earliest > lane.width_ms
        if item.is_replaced:
            item.given, item.timestamp, is_any = item.timestamp, arrived_ms, True
        index = item.next
    return is_any and lane.is_clamp


cdef int count_replaced(lanes, Work work, bytes topic, int index, int end) except -1:
    """Count the replaced timestamps of appended messages: see `Lanes._count_replaced`."""
    cdef int first = NONE, count = 0
    while index != end:
        if work.items[index].is_replaced:
            first = index if first == NONE else first
            count += 1
        index = work.items[index].next
    if count:
        lanes._note_replaced(topic, work.items[first].given, work.items[first].arrival, count)
    return 0


cdef int put_chain(lanes, Work work, Lane lane, bytes topic, int first, uint8_t *base, int64_t now_ms) except -1:
    """Append messages to a lane, chunk by chunk, then close or schedule its run."""
    cdef uint64_t size
    cdef int end
    cdef bint is_counted = False
    lane.is_explicit = work.is_explicit
    if lane.has_window and not (work.is_explicit and lane.is_clamp):
        is_counted = stamp(work, lane, first, now_ms + work.clock_step_ms)
    while first != NONE:
        size = record_size(&work.items[first])
        if lane.has_room(size) or make_room(lanes, work, lane, size, now_ms):
            end = lane.append(base, work.items, first, now_ms)
            if is_counted:
                count_replaced(lanes, work, topic, first, end)
            first = end
        else:
            first = drop(lanes, work, topic, first)
    if lane.due_ms and lane.records:
        lane.used_ms = now_ms  # it lingers already
        return 0
    if lane.linger_ms and lane.records:
        lane.used_ms, lane.due_ms = now_ms, now_ms + lane.linger_ms
        if work.has_asked or lane.due_ms - work.times.late_ms < work.times.due_ms or not work.times.due_ms:
            wake_by(lanes, work, lane.due_ms - <int64_t>lanes.leeway_ms)
        return 0
    work.has_asked = True
    lanes._after_append(lane, topic, now_ms)
    lane.linger_ms = lane.due_ms - now_ms if lane.due_ms else 0
    work.is_urgent = work.is_urgent or lane.records == 0
    return 0


cdef int drop(lanes, Work work, bytes topic, int first) except -2:
    """Record a message without room, and those behind it that cannot find any; return the next one, or NONE."""
    reason = lanes._refusal
    cdef bint refuses_rest = lanes._refuses_rest
    while first != NONE:
        work.no_room.append(NoRoom(topic, work.items[first].timestamp, work.items[first].arrival, reason))
        first = work.items[first].next
        if not refuses_rest:
            break
    return first


cdef int wake_by(lanes, Work work, int64_t due_ms) except -1:
    work.has_asked = True
    next_due_ms = lanes._next_due_ms
    if next_due_ms is None or due_ms < next_due_ms:
        lanes._next_due_ms = due_ms
    return 0


cdef bint make_room(lanes, Work work, Lane lane, uint64_t size, int64_t now_ms) except -1:
    work.has_asked = True
    return lanes._make_room(lane, size, now_ms)


# --- from the socket -------------------------------------------------------------------------------------------------
cdef class ArrivalRate:
    """`kernels.pure.arrival_rate.ArrivalRate`."""

    cdef int64_t longest_us, most, room
    cdef int64_t since_us, seen, weight   # of the present window
    cdef bint has_slept                   # in that window
    cdef double messages_per_us, bytes_per_us
    cdef int64_t awake_us
    cdef double awake_messages_per_us, awake_bytes_per_us

    def __init__(self, coalescing=pure_pace.NO_COALESCING):
        self.longest_us, self.most, self.room = coalescing

    cpdef void add(self, int64_t messages, int64_t size) noexcept:
        self.seen += messages
        self.weight += messages * HEAD_BYTES + 2 * size

    cpdef int64_t coalescing_us(self, int64_t now_us) noexcept:
        cdef double coalescing_us = self.longest_us, messages_per_us, bytes_per_us
        if now_us - self.since_us >= WINDOW_US:
            self.end_window(now_us)
        if now_us - self.awake_us > AWAKE_EVERY_US:
            return 0
        messages_per_us = max(self.messages_per_us, self.awake_messages_per_us)
        bytes_per_us = max(self.bytes_per_us, self.awake_bytes_per_us)
        if coalescing_us * messages_per_us > self.most:
            coalescing_us = self.most / messages_per_us
        if coalescing_us * bytes_per_us > self.room:
            coalescing_us = self.room / bytes_per_us
        if coalescing_us < LEAST_US or coalescing_us * self.messages_per_us < LEAST_MESSAGES:
            return 0
        self.has_slept = True
        return <int64_t>coalescing_us

    cdef void end_window(self, int64_t now_us) noexcept:
        cdef double elapsed_us = now_us - self.since_us
        self.messages_per_us, self.bytes_per_us = self.seen / elapsed_us, self.weight / elapsed_us
        if not self.has_slept:
            self.awake_messages_per_us, self.awake_bytes_per_us = self.messages_per_us, self.bytes_per_us
            self.awake_us = now_us
        self.since_us, self.seen, self.weight, self.has_slept = now_us, 0, 0, False


class DatagramIntake(PureDatagramIntake):
    """`kernels.pure.intake.DatagramIntake`."""

    pace_type = ArrivalRate

    def __init__(self, slab, receiver, lanes, row, *, longest, counters):
        super().__init__(slab, receiver, lanes, row, longest=longest, counters=counters)
        if longest > slab.geometry.landing_slot_size or max(counters) >= ROW_COUNTER_CAPACITY:
            raise ValueError("The slab has no such slots or counters.")
        self._timer_ms = 0

    def run(self, int descriptor, int limit, int64_t now_ms, int64_t until_ms):
        lanes, geometry = self._lanes, self._lanes._slab.geometry
        cdef Work work = lanes._work
        cdef Memory memory
        cdef Landing landing
        cdef uint64_t row_at = self._row._at
        cdef uint64_t counters[4]
        cdef uint64_t amounts[4]
        cdef uint8_t *base
        cdef uint8_t *row
        cdef int64_t landed = 0, offset_ms = now_ms - monotonic_us() // 1000, closed_ms = 0, now_us, coalescing_us
        cdef ArrivalRate pace = self._pace
        cdef int count, most, slots = geometry.landing_slots, left_ms, timer_ms = self._timer_ms
        cdef Times *times = &work.times
        counters[0], counters[1], counters[2], counters[3] = self._counters
        read_times(lanes, work)
        left_ms = <int>max(0, min(until_ms, times.due_ms) - now_ms)
        attach(lanes._slab, &memory)
        try:
            landing_of(geometry, &memory, slots, self._longest, &landing)
            base = <uint8_t *>memory.buffer.buf
            row = base + row_at
            while landed < limit:
                most = <int>min(limit - landed, slots)
                count = receive_within(
                    descriptor, landing.headers, most, left_ms, times.late_ms, now_ms - offset_ms, &timer_ms
                )
                if count == 0:
                    break
                now_us = monotonic_us()
                now_ms = now_us // 1000 + offset_ms
                store64(row + ROW_VERSION, load64(row + ROW_VERSION) | 1)
                if load32(base + SUPER_TOPICS_VERSION) != work.topics_version:
                    lanes._notice_topics()
                    work.topics_version = lanes._topics_version
                    work.has_asked = True
                read_landed(&landing, work, count, None)
                put_groups(lanes, work, base, now_ms)
                if work.rejections or work.no_room:
                    return Taken(landed, count, work.outcome())
                amounts[0] = amounts[1] = count
                amounts[2], amounts[3] = work.any_partition, work.partition_key
                land_plain(&memory, row, landing.at, counters, amounts, count)
                landed += count
                pace.add(count, work.bytes)
                if work.has_asked:
                    read_times(lanes, work)
                    if lanes._closed and not closed_ms:
                        closed_ms = now_ms
                        until_ms = min(until_ms, now_ms + times.patience_ms + COARSE_MS)
                if work.is_urgent or (closed_ms and now_ms >= closed_ms + times.patience_ms):
                    break
                left_ms = 0
                if count < most:  # a short batch: the queue is empty
                    left_ms = <int>max(0, min(until_ms, times.due_ms) - now_ms)
                    if not left_ms:
                        break
                    coalescing_us = pace.coalescing_us(now_us)
                    if coalescing_us and coalescing_us < left_ms * 1000:
                        sleep_us(coalescing_us)
                        now_ms = monotonic_us() // 1000 + offset_ms
                        left_ms = <int>max(0, min(until_ms, times.due_ms) - now_ms)
            return Taken(landed, 0, None)
        finally:
            self._timer_ms = timer_ms
            release(&memory)


cdef int read_times(lanes, Work work) except -1:
    due_ms = lanes._next_due_ms
    work.times.due_ms = 0 if due_ms is None else due_ms
    work.times.patience_ms = lanes.patience_ms
    work.times.late_ms = lanes.leeway_ms
    work.has_asked = False
    return 0


cdef int64_t monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef void sleep_us(int64_t microseconds) noexcept:
    cdef timespec pause
    pause.tv_sec, pause.tv_nsec = microseconds // 1000000, microseconds % 1000000 * 1000
    with nogil:
        nanosleep(&pause, NULL)


cdef int receive_within(
    int descriptor, uint8_t *headers, unsigned int limit, int left_ms, int late_ms, int64_t since_ms, int *timer_ms
) except -1:
    """Receive datagrams into the landing zone, waiting `left_ms` from `since_ms` for the first; return their number.

    The wait may be late by `late_ms`.  It starts with the socket's own timer, with which a message costs one call and
    no precise timer.  That timer is late by up to `COARSE_MS` and costs a call to set.  So it is set to a short time,
    `timer_ms`, and stays unless it is too long or far too short.  poll() waits for the rest.
    """
    cdef int most = left_ms + late_ms - COARSE_MS, wanted, count
    cdef pollfd waiting
    if most > 0:
        if timer_ms[0] == 0 or timer_ms[0] > most or timer_ms[0] < most // 4:  # 0: never set
            wanted = max(1, most // 2)  # 0 would mean no limit
            set_timer(descriptor, wanted)
            timer_ms[0] = wanted  # stored only after success
        count = receive(descriptor, headers, limit, MSG_WAITFORONE)
        if count == 1 and (<mmsghdr *>headers).msg_len == 0 and is_shut(descriptor):
            (<mmsghdr *>headers).msg_len = <uint32_t>layout.LANDING_EMPTY
            return 0  # the kernel reports the end of the socket to a blocking call in this way
        if count:
            return count
        left_ms -= <int>(monotonic_us() // 1000 - since_ms)
    if left_ms > 0:
        waiting.fd, waiting.events = descriptor, POLLIN
        with nogil:
            poll(&waiting, 1, left_ms)
    return receive(descriptor, headers, limit, MSG_DONTWAIT)


cdef bint is_shut(int descriptor) noexcept:
    """Report if the socket is shut down for senders."""
    cdef pollfd asked
    asked.fd, asked.events, asked.revents = descriptor, POLLRDHUP, 0
    return poll(&asked, 1, 0) == 1 and asked.revents & POLLRDHUP != 0


cdef int set_timer(int descriptor, int milliseconds) except -1:
    """Limit the wait of a receiving call.  Raises OSError when the socket is broken."""
    cdef timeval time
    time.tv_sec, time.tv_usec = milliseconds // 1000, milliseconds % 1000 * 1000
    if setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)):
        raise OSError(errno, os.strerror(errno))
    return 0


cdef int receive(int descriptor, uint8_t *headers, unsigned int limit, int flags) except -1:
    """Receive datagrams into the landing zone and return their number.  Raises OSError when the socket is broken."""
    cdef int count, error
    with nogil:
        count = recvmmsg(descriptor, <mmsghdr *>headers, limit, flags, NULL)
    if count >= 0:
        return count
    error = errno
    if error == EAGAIN or error == EINTR:
        return 0
    raise OSError(error, os.strerror(error))
