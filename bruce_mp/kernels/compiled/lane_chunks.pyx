"""The allocation of chunks to lanes: see `kernels/pure/lane_chunks.py`.

The pure `LaneChunks` keeps the state and does all that is rare: it searches for donors, applies the limits of a topic
that has much of the memory, and records refusals.
"""

from bruce_mp.kernels.compiled.chunks cimport FreeChunks, Holding, Holdings, allocate, can_spare
from bruce_mp.kernels.compiled.lane cimport Lane
from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.kernels.compiled.chunks import ChunkPool
from bruce_mp.kernels.pure import lane_chunks as pure
from bruce_mp.slab import topic_thresholds
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.topic_thresholds import TopicThresholds


cdef int64_t FEW_RUNS = pure._FEW_RUNS
cdef int64_t MANY_RUNS = pure._MANY_RUNS
cdef int64_t RESERVE_ALPHA_DIVISOR = topic_thresholds.RESERVE_ALPHA_DIVISOR


cdef bint make_room(lanes, Lane lane, uint64_t size, int64_t now_ms) except -1:
    """See `kernels.pure.lane_chunks.LaneChunks.make_room`."""
    cdef Memory memory
    chunks = lanes._chunks
    if type(chunks._pool) is not ChunkPool:
        return chunks.make_room(lane, size, now_ms)
    attach(lane.slab, &memory)
    try:
        return make_room_in(lanes, chunks, lane, &memory, size, now_ms)
    finally:
        release(&memory)


cdef bint make_room_in(lanes, chunks, Lane lane, Memory *memory, uint64_t size, int64_t now_ms) except -1:
    """Do the work of `make_room` in the attached memory of the slab."""
    cdef uint64_t needed_span = (CHUNK_HEADER + lane.header_size + size + CHUNK_BYTES - 1) // CHUNK_BYTES
    cdef uint64_t wanted_span = next_span(lane, chunks._longest_span)
    pool, thresholds = chunks._pool, chunks._thresholds
    seal_lane(lanes, pool, lane, memory)
    if needed_span == 1 and thresholds is not None and not is_far_from_threshold(thresholds, pool, lane, 1):
        if chunks._is_over_threshold(lane.header, now_ms) and chunks._adopt_donor_chunk(lane, size):
            return True
    if wanted_span > needed_span and can_spare(pool, memory, wanted_span):
        if open_span(chunks, lane, memory, wanted_span, now_ms):
            return True
    if open_span(chunks, lane, memory, needed_span, now_ms):
        return True
    chunks._record_refusal(needed_span)
    return False


cdef uint64_t next_span(Lane lane, uint64_t longest_span) noexcept:
    """See `kernels.pure.lane_chunks.LaneChunks._next_span`."""
    cdef uint64_t span = lane.span
    if lane.chunk < 0:
        return 1
    if lane.runs > MANY_RUNS:
        span //= 2
    elif lane.records and lane.runs <= FEW_RUNS:
        span *= 2
    return min(span, longest_span)


cdef int seal_lane(lanes, pool, Lane lane, Memory *memory) except -1:
    """See `kernels.pure.lane_chunks.LaneChunks.seal_lane`."""
    if lane.records:
        close_full_run(lanes, lane, memory)
    if lane.chunk >= 0:
        store8(memory.chunks + lane.chunk * CHUNK_BYTES + CHUNK_STATE, CHUNK_SEALED)
        pool._unreclaimable.append(lane.chunk)
        lane.chunk = -1
    return 0


cdef int close_full_run(lanes, Lane lane, Memory *memory) except -1:
    """See `kernels.pure.lanes.Lanes._close_full_run`."""
    tickets = lanes._tickets
    if type(tickets) is not HandoverTickets:  # a test wraps the tickets
        lanes._close_full_run(lane)
        return 0
    cdef int64_t due_ms = lane.due_ms
    closed = lanes._closed
    closed.add(lane.hand_over(<uint8_t *>memory.buffer.buf, tickets.last_at), due_ms)
    cdef int64_t publish_ms = closed.publish_ms
    if publish_ms:
        lanes._wake_by(publish_ms - <int64_t>lanes.leeway_ms)
    return 0


cdef bint is_far_from_threshold(thresholds, pool, Lane lane, int64_t span) except -1:
    """Return True if the topic may have `span` more chunks whatever its limit is, without a look at other inputs.

    False does not mean that it may not.
    """
    cdef FreeChunks free = pool._free
    cdef Holding holding
    if type(thresholds) is not TopicThresholds:
        return False
    found = (<Holdings>pool.holdings).by_topic.get(topic_key(lane))
    if found is None:
        return True
    holding = found
    return (holding.chunk_count + span) * RESERVE_ALPHA_DIVISOR <= free.count - span


cdef object topic_key(Lane lane):
    """Return the key of the lane's topic in `Holdings`."""
    return lane.topic if lane.topic else lane.name


cdef bint open_span(chunks, Lane lane, Memory *memory, uint64_t span, int64_t now_ms) except -1:
    """Give the lane a new span of `span` chunks; return False if there is none, or the topic may not have it."""
    cdef int64_t chunk
    cdef Holdings holdings
    pool, thresholds = chunks._pool, chunks._thresholds
    if thresholds is None:
        chunk = allocate(pool, memory, span, now_ms)
    elif not is_far_from_threshold(thresholds, pool, lane, span):
        found = thresholds.allocate(topic_key(lane), span, now_ms)
        chunk = -1 if found is None else found
    else:
        holdings, topic = pool.holdings, topic_key(lane)
        thresholds.has_refused = False
        holding = holdings.holding_of(topic)
        chunk = allocate(pool, memory, span, now_ms)
        if chunk >= 0:
            holdings.add(topic, holding, chunk, span)
    if chunk < 0:
        return False
    lane.use_span(memory, chunk, span)
    return True
