"""Append a batch to lanes: see `kernels/pure/lanes.py`.

The base class, the pure `Lanes`, chooses the lane of each message and closes runs.  A `TopicLanes` caches the lanes
that the base class has chosen for a numbered topic, so that the topic's messages are parsed, grouped and appended
without Python objects.  For a group without a cached lane, this module calls the methods of the base class.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdlib cimport calloc, free, malloc

from bruce_mp.kernels.compiled.lane cimport Lane, record_size
from bruce_mp.kernels.compiled.lane_chunks cimport make_room
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.parse cimport NONE, Group, KnownTopic, ParsedBatch, ParsedMessage
from bruce_mp.kernels.compiled.redo cimport make_version_odd
from bruce_mp.kernels.compiled.timestamps cimport ReplacedCount, count_replaced, replace_timestamps

from bruce_mp.kernels.closed_runs import tick_after
from bruce_mp.kernels.pure.lanes import IDLE_MS, WAKE_SLACK_MS, Ingested, NoRoom
from bruce_mp.kernels.pure.lanes import Lanes as PureLanes
from bruce_mp.slab import layout
from bruce_mp.slab.handover_tickets import HandoverTickets


cdef enum:
    MMSGHDR_FLAGS = 48   # offset of msg_flags in a message header
    TRUNCATED = 0x20     # the flag MSG_TRUNC: the datagram was longer than its slot


cdef uint64_t ARRIVAL_STREAM = layout.ARRIVAL_STREAM
cdef int ARRIVAL_SOURCE_BITS = layout.ARRIVAL_SOURCE_BITS


cdef struct Chain:           # messages of a group for one partition, linked by `ParsedMessage.next`
    uint64_t batch_number    # the batch in which `first` and `last` were set
    int first, last          # indexes of messages
    bint is_shared           # true if the partition's lane is shared


cdef class TopicLanes(KnownTopic):
    """A numbered topic with its lanes."""

    cdef Lane any_lane       # the lane of AnyPartition messages; None = not chosen yet
    cdef uint64_t partition_count   # 0 = not set, because no message with a partition key has arrived
    cdef list keyed_lanes    # the lanes by partition index; None = not chosen yet
    cdef Chain *chains       # by partition index
    cdef object number       # of the topic; set with `partition_count`

    def __dealloc__(self):
        free(self.chains)

    cdef int set_partition_count(self, number, uint64_t partition_count) except -1:
        """Set the number and the partition count of the topic; no lanes are chosen yet."""
        self.number, self.keyed_lanes = number, [None] * <Py_ssize_t>partition_count
        self.chains = <Chain *>calloc(partition_count, sizeof(Chain))
        if self.chains == NULL:
            raise MemoryError
        self.partition_count = partition_count
        return 0


cdef class IngestBatch(ParsedBatch):
    """A batch that is being appended to the lanes."""

    def __cinit__(self):
        self.no_room = []

    def __dealloc__(self):
        free(self.partition_indexes)

    cdef int begin(self, int max_messages) except -1:
        """Prepare for a batch of up to `max_messages` messages."""
        ParsedBatch.begin(self, max_messages)
        if self.no_room:
            self.no_room = []
        if max_messages <= self.partition_capacity:
            return 0
        free(self.partition_indexes)
        self.partition_capacity = 0
        self.partition_indexes = <uint64_t *>malloc(max_messages * sizeof(uint64_t))
        if self.partition_indexes == NULL:
            raise MemoryError
        self.partition_capacity = max_messages
        return 0

    cdef object outcome(self):
        """Return the result of the batch."""
        return Ingested(self.any_partition_count, self.partition_key_count, self.rejections, self.no_room)


class Lanes(PureLanes):
    """See `kernels.pure.lanes.Lanes`."""

    lane_type = Lane

    def __init__(self, slab, pool, topics, linger_ms, tickets=None, **rules):
        self._batch = IngestBatch()
        super().__init__(slab, pool, topics, linger_ms, tickets, **rules)
        (<IngestBatch>self._batch).topics_version = self._topics_version

    @property
    def wall_offset_ms(self):
        return (<IngestBatch>self._batch).wall_offset_ms

    @wall_offset_ms.setter
    def wall_offset_ms(self, int64_t offset_ms):
        (<IngestBatch>self._batch).wall_offset_ms = offset_ms

    def _refresh_topics(self):
        version_before = self._topics_version
        super()._refresh_topics()
        if self._topics_version != version_before:
            self._batch.clear_topics()

    @property
    def partitioners(self):
        return (<IngestBatch>self._batch).partitioners

    @partitioners.setter
    def partitioners(self, partitioners):
        (<IngestBatch>self._batch).partitioners = partitioners
        self._batch.clear_topics()

    def apply_lingers(self, linger_ms):
        super().apply_lingers(linger_ms)
        for lane in self._lanes.values():
            (<Lane>lane).linger_ms = 0  # not known any more

    def close_due(self, now_ms):
        count_before = len(self._lanes)
        super().close_due(now_ms)
        if len(self._lanes) != count_before:  # the topics may have cached the discarded lanes
            self._batch.clear_topics()

    def _close_due_lanes(self, int64_t now_ms):
        cdef Memory memory
        cdef Lane lane
        cdef int64_t due_until_ms = now_ms + WAKE_SLACK_MS, idle_since_ms = now_ms - IDLE_MS, earliest_due_ms = 0
        cdef uint64_t last_ticket_at = self._tickets.last_at
        cdef bint has_lane_without_run = False
        cdef bint hands_over = type(self._tickets) is HandoverTickets  # False if a test wraps the tickets
        cdef list idle_keys = [], closed = self._closed.segments
        attach(self._slab, &memory)
        try:
            for key, each in self._lanes.items():
                lane = <Lane>each
                if hands_over and lane.records and lane.due_ms <= due_until_ms:
                    closed.append(lane.hand_over(<uint8_t *>memory.buffer.buf, last_ticket_at))
                if lane.records and lane.due_ms > due_until_ms:
                    earliest_due_ms = min(earliest_due_ms, lane.due_ms) if earliest_due_ms else lane.due_ms
                elif not lane.records and lane.used_ms > idle_since_ms:
                    has_lane_without_run = True
                elif self._close_if_due(lane, now_ms):
                    idle_keys.append(key)
        finally:
            release(&memory)
        if earliest_due_ms:
            self._wake_by(earliest_due_ms - self.leeway_ms)
        if has_lane_without_run:  # it may be idle later
            self._wake_by(tick_after(now_ms, IDLE_MS))
        return idle_keys

    def close_all(self):
        super().close_all()
        self._batch.clear_topics()

    def ingest(
        self, buffer, extents, uint64_t first_arrival, int64_t now_ms, skip=frozenset(), *, sources=None,
        bint keeps_timestamps=False,
    ):
        cdef IngestBatch batch = self._batch
        cdef uint64_t arrival
        cdef Py_buffer source
        cdef int64_t at, length
        cdef int slot
        self._refresh_topics()
        batch.are_limits_stale = True
        batch.begin(len(extents))
        PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
        try:
            for slot, (at, length) in enumerate(extents):
                if at < 0 or length < 0 or at + length > source.len:
                    raise ValueError(f"Message {slot} lies outside of the buffer.")
                arrival = first_arrival + slot
                if sources is not None:
                    arrival = ARRIVAL_STREAM | arrival << ARRIVAL_SOURCE_BITS | <uint64_t>sources[slot]
                if not skip or arrival not in skip:
                    batch.add(slot, <uint8_t *>source.buf + at, length, arrival)
            batch.keeps_timestamps = keeps_timestamps
            append_all(self, batch, now_ms)
            return batch.outcome()
        finally:
            batch.keeps_timestamps = False
            PyBuffer_Release(&source)

    def ingest_landed(self, int count, uint32_t max_size, int64_t now_ms, skip=frozenset()):
        cdef IngestBatch batch = self._batch
        cdef Memory memory
        cdef Landing landing
        self._refresh_topics()
        batch.are_limits_stale = True
        attach(self._slab, &memory)
        try:
            find_landing_zone(self._slab.geometry, &memory, count, max_size, &landing)
            read_landed(&landing, batch, count, skip)
            append_groups(self, batch, <uint8_t *>memory.buffer.buf, now_ms)
            return batch.outcome()
        finally:
            release(&memory)


cdef int find_landing_zone(geometry, Memory *memory, int slots, uint32_t max_size, Landing *found) except -1:
    """Locate the slots for datagrams.  Raises ValueError if the landing zone has fewer slots, or smaller ones."""
    cdef uint64_t at = geometry.landing_at, slots_at = geometry.landing_slots_at
    if slots > geometry.landing_slots or max_size > geometry.landing_slot_size:
        raise ValueError("The landing zone has no such slots.")
    found.at = <uint8_t *>memory.buffer.buf + at
    found.headers = found.at + LANDING_HEADERS
    found.slots = <uint8_t *>memory.buffer.buf + slots_at
    found.slot_size, found.max_size = geometry.landing_slot_size, max_size
    return 0


cdef int read_landed(Landing *landing, IngestBatch batch, int count, skip) except -1:
    """Parse the first `count` datagrams of the landing zone."""
    cdef uint8_t *headers = landing.headers
    cdef uint8_t *data = landing.slots
    cdef uint64_t first_arrival = load64(landing.at + LANDING_BASE_ARRIVAL)
    cdef uint32_t length
    cdef int slot
    batch.begin(count)
    for slot in range(count):
        length = load32(headers + MMSGHDR_LENGTH)
        batch.wire_bytes += length
        if length > landing.max_size or (length == landing.max_size and load32(headers + MMSGHDR_FLAGS) & TRUNCATED):
            length = 0  # `add` rejects an empty message as malformed
        if not skip or first_arrival + slot not in skip:
            batch.add(slot, data, length, first_arrival + slot)
        headers += MMSGHDR_BYTES
        data += landing.slot_size
    return 0


cdef int begin_batch(lanes, IngestBatch batch, uint8_t *base, uint8_t *row) except -1:
    """Begin a batch as `ProcessRow.begin_batch` does, and apply changes of the topic table."""
    make_version_odd(row)
    if load32(base + SUPER_TOPICS_VERSION) != batch.topics_version:
        lanes._refresh_topics()
        batch.topics_version = lanes._topics_version
        batch.are_limits_stale = True
    return 0


cdef int append_all(lanes, IngestBatch batch, int64_t now_ms) except -1:
    """Append the groups of a batch to their lanes."""
    cdef Memory memory
    attach(lanes._slab, &memory)
    try:
        return append_groups(lanes, batch, <uint8_t *>memory.buffer.buf, now_ms)
    finally:
        release(&memory)


cdef int append_groups(lanes, IngestBatch batch, uint8_t *base, int64_t now_ms) except -1:
    """Do the work of `append_all` in the attached memory of the slab."""
    cdef int index
    for index in range(batch.group_count):
        append_group(lanes, batch, &batch.groups[index], base, now_ms)
    return 0


cdef int append_group(lanes, IngestBatch batch, Group *group, uint8_t *base, int64_t now_ms) except -1:
    """Append a group to the cached lanes of its topic, or to the lanes that the base class chooses."""
    cdef ParsedMessage *first = &batch.messages[group.first]
    cdef PyObject *known = batch.find(first.topic, first.topic_size)  # a `TopicLanes`, or NULL
    cdef bytes topic
    cdef Lane lane
    if known != NULL and not group.keyed and (<TopicLanes>known).any_lane is not None:
        lane = (<TopicLanes>known).any_lane
        return append_chain(lanes, batch, lane, (<TopicLanes>known).name, group.first, base, now_ms)
    if known != NULL and group.keyed and (<TopicLanes>known).partition_count:
        return append_by_partition(lanes, batch, <TopicLanes>known, group, base, now_ms)
    batch.are_limits_stale = True
    topic = first.topic[: first.topic_size]
    number = lanes._topics.number_of(topic)
    if number and known == NULL:
        batch.add_topic(TopicLanes.__new__(TopicLanes), topic)
        known = batch.find(first.topic, first.topic_size)
    if group.keyed:
        return append_keyed(lanes, batch, topic, number, known, group, base, now_ms)
    lane = lanes._lane_for(topic, number, index=-1, count=0) if number else lanes._shared_lane(0, topic, keyed=False)
    if known != NULL and not lanes._is_shared(lane):
        (<TopicLanes>known).any_lane = lane
    return append_chain(lanes, batch, lane, topic, group.first, base, now_ms)


cdef int append_keyed(
    lanes, IngestBatch batch, bytes topic, number, PyObject *known, Group *group, uint8_t *base, int64_t now_ms
) except -1:
    """Append the first PartitionKey group of a topic, or any such group of a topic without a number or partitions."""
    cdef uint64_t partition_count = lanes._partition_count_of(number) if number else 0
    if not partition_count:
        lane = lanes._shared_lane(number, topic, keyed=True)
        return append_chain(lanes, batch, lane, topic, group.first, base, now_ms)
    (<TopicLanes>known).set_partition_count(number, partition_count)
    return append_by_partition(lanes, batch, <TopicLanes>known, group, base, now_ms)


cdef int append_by_partition(
    lanes, IngestBatch batch, TopicLanes topic_lanes, Group *group, uint8_t *base, int64_t now_ms
) except -1:
    """Split a PartitionKey group by the partitions of its keys and append the parts."""
    cdef int part_count = split_group(batch, topic_lanes, group), position
    cdef list lane_by_index = topic_lanes.keyed_lanes
    cdef uint64_t index
    cdef Lane lane
    # As in the base class, all lanes are chosen before the first part is appended.
    for position in range(part_count):
        index = batch.partition_indexes[position]
        if lane_by_index[index] is None:
            batch.are_limits_stale = True
            lane_by_index[index] = lanes._lane_for(
                topic_lanes.name, topic_lanes.number, index, topic_lanes.partition_count
            )
            topic_lanes.chains[index].is_shared = lanes._is_shared(lane_by_index[index])
    for position in range(part_count):
        index = batch.partition_indexes[position]
        lane = lane_by_index[index]
        if topic_lanes.chains[index].is_shared:
            lane_by_index[index] = None  # not cached: by the next batch, another topic may have set the lane's header
        append_chain(lanes, batch, lane, topic_lanes.name, topic_lanes.chains[index].first, base, now_ms)
    return 0


cdef int split_group(IngestBatch batch, TopicLanes topic_lanes, Group *group) noexcept:
    """Chain the messages of a group by partition.

    Store the indexes of these partitions in `batch.partition_indexes`, by first appearance, and return their number.
    """
    cdef int index = group.first, following, part_count = 0
    cdef uint64_t partition
    cdef Chain *chain
    while index != NONE:
        following = batch.messages[index].next
        batch.messages[index].next = NONE
        partition = batch.messages[index].partition_key % topic_lanes.partition_count
        chain = &topic_lanes.chains[partition]
        if chain.batch_number == batch.batch_number:
            batch.messages[chain.last].next = index
        else:
            chain.batch_number, chain.first = batch.batch_number, index
            batch.partition_indexes[part_count] = partition
            part_count += 1
        chain.last = index
        index = following
    return part_count


cdef int append_chain(
    lanes, IngestBatch batch, Lane lane, bytes topic, int first, uint8_t *base, int64_t now_ms
) except -1:
    """Append the chain of messages that begins with index `first` to a lane, then close or schedule the lane's run."""
    cdef uint64_t size
    cdef int end
    cdef ParsedMessage *message
    cdef bint has_room, counts_replaced = False
    cdef ReplacedCount replaced
    cdef WaitLimits *limits
    lane.keeps_timestamps = batch.keeps_timestamps
    if lane.has_window and not (batch.keeps_timestamps and lane.limits.is_clamp):
        if replace_timestamps(batch.messages, first, &lane.limits, now_ms + batch.wall_offset_ms):
            counts_replaced = lane.limits.is_clamp
    while first != NONE:
        size = record_size(&batch.messages[first])
        has_room = lane.has_room(size)
        if not has_room:
            batch.are_limits_stale = True
            has_room = make_room(lanes, lane, size, now_ms)
        if has_room:
            end = lane.append(base, batch.messages, first, now_ms)
            if counts_replaced:
                replaced = count_replaced(batch.messages, first, end)
                if replaced.count:
                    message = &batch.messages[replaced.first]
                    lanes._replaced.add(topic, message.client_timestamp, message.arrival, replaced.count)
            first = end
        else:
            first = record_no_room(lanes, batch, topic, first)
    if lane.due_ms and lane.records:
        lane.used_ms = now_ms  # the open run has its due time already
        return 0
    if lane.linger_ms and lane.records:
        lane.used_ms = now_ms
        lane.due_ms = ((now_ms + <int64_t>lanes.leeway_ms) // lane.linger_ms + 1) * lane.linger_ms  # `tick_after`
        # If the limits are not stale, they show whether an earlier wake-up is set, which makes the call unnecessary.
        limits = &batch.limits
        if batch.are_limits_stale or lane.due_ms - limits.leeway_ms < limits.due_ms or not limits.due_ms:
            wake_by(lanes, batch, lane.due_ms - <int64_t>lanes.leeway_ms)
        return 0
    batch.are_limits_stale = True
    lanes._schedule_close(lane, topic, now_ms)
    lane.linger_ms = lanes._linger_of(lane.topic, topic) if lane.due_ms else 0  # cached for the next chains
    return 0


# NONE, which is -1, is a result of `record_no_room`, so an exception returns -2.
cdef int record_no_room(lanes, IngestBatch batch, bytes topic, int first) except -2:
    """Record that there was no room for message `first`; if `refuses_rest` is set, also for all messages behind it.

    Return the index of the next message to append, or NONE.
    """
    reason = lanes._chunks.refusal
    cdef bint refuses_rest = lanes._chunks.refuses_rest
    while first != NONE:
        batch.no_room.append(NoRoom(topic, batch.messages[first].timestamp, batch.messages[first].arrival, reason))
        first = batch.messages[first].next
        if not refuses_rest:
            break
    return first


cdef int wake_by(lanes, IngestBatch batch, int64_t due_ms) except -1:
    """See `_wake_by` of the base class."""
    batch.are_limits_stale = True
    next_due_ms = lanes._next_due_ms
    if next_due_ms is None or due_ms < next_due_ms:
        lanes._next_due_ms = due_ms
    return 0
