"""The chunks of an input: see `slab/chunks.py`, `slab/free_chunks.py` and `slab/holdings.py`.

Methods that run rarely are those of the pure classes, which find the attributes that they use under the same names.
"""

from collections import OrderedDict, defaultdict

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memset

from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.slab import chunks as pure
from bruce_mp.slab import free_chunks
from bruce_mp.slab.chunks import ChunkPool as PureChunkPool
from bruce_mp.slab.free_chunks import FreeChunks as PureFreeChunks
from bruce_mp.slab.holdings import Holdings as PureHoldings
from bruce_mp.slab.holdings import SearchPause

cdef extern from "Python.h":
    char *PyByteArray_AsString(object)


cdef int INSPECTIONS_PER_ALLOCATION = pure.INSPECTIONS_PER_ALLOCATION
cdef int STUCK_DIVISOR = pure.STUCK_DIVISOR
cdef double KEPT_FREE_PART = pure._KEPT_FREE_PART
cdef int64_t NONE_ABSENT = free_chunks._NONE_ABSENT
cdef int64_t STUCK_AFTER_MS = pure.STUCK_AFTER_MS


cdef bint is_settled(Memory *memory, uint64_t chunk) noexcept nogil:
    """See `slab.chunks.is_settled`."""
    cdef uint8_t *limit = memory.chunks + memory.chunk_count * CHUNK_BYTES
    cdef uint8_t *base = memory.chunks + chunk * CHUNK_BYTES
    cdef uint8_t *end = base + <uint64_t>load32(base + CHUNK_SPAN) * CHUNK_BYTES
    cdef uint8_t *at = base + CHUNK_HEADER
    cdef uint64_t size
    cdef uint8_t state
    cdef uint32_t _
    if end > limit:
        return False
    for _ in range(load32(base + CHUNK_RUNS)):
        if at + RUN_HEADER > end or load32(at + RUN_MAGIC_AT) != RUN_MAGIC:
            return False
        state, size = load8(at), load32(at + RUN_SIZE)
        if not is_settled_state(state) and not (state == SPLIT and is_split_settled(at, size, end)):
            return False
        if size < RUN_HEADER or size & 7:
            return False
        at += size
    return True


cdef bint is_split_settled(uint8_t *run, uint64_t size, uint8_t *end) noexcept nogil:
    """Return True if all records of a SPLIT run are delivered or discarded; False for a damaged run."""
    cdef uint64_t body = body_offset(run)
    cdef uint8_t *at = run + body
    cdef RecordFields fields
    cdef uint32_t _
    if size > <uint64_t>(end - run) or size < body:
        return False
    for _ in range(load32(run + RUN_COUNT)):
        if read_record(at, run + size, &fields) or not is_settled_state(load8(at)):
            return False
        at = fields.next
    return True


cdef class FreeChunks:
    """See `slab.free_chunks.FreeChunks`."""

    add_share, remove_unused_share, adopt = (
        PureFreeChunks.add_share, PureFreeChunks.remove_unused_share, PureFreeChunks.adopt
    )
    search, search_with, count_spans = PureFreeChunks.search, PureFreeChunks.search_with, PureFreeChunks.count_spans

    def __init__(self, chunk_count):
        self._used = bytearray(b"\1" * chunk_count)  # never resized, so the address stays valid
        self.used = <uint8_t *>PyByteArray_AsString(self._used)
        self._released = defaultdict(list)
        self._absent_span = NONE_ABSENT

    cpdef use(self, uint64_t chunk, uint64_t span):
        memset(self.used + chunk, 1, span)
        self.count -= span

    cpdef release(self, uint64_t chunk, uint64_t span):
        memset(self.used + chunk, 0, span)
        self.count += span
        self._released[span].append(chunk)
        if self._absent_span != NONE_ABSENT:
            self.find_absent_around(chunk, span)

    cdef int find_absent_around(self, int64_t chunk, int64_t span) except -1:
        """Reset `_absent_span` if the release of a span has joined free chunks to a span of that length."""
        cdef int64_t absent = self._absent_span
        if self._used.find(bytes(absent), max(0, chunk - absent + 1), chunk + span + absent - 1) >= 0:
            self._absent_span = NONE_ABSENT
        return 0

    cpdef next_span(self, uint64_t span):
        cdef list released = self._released[span]
        cdef uint64_t chunk
        while released:
            chunk = released.pop()
            if memchr(self.used + chunk, 1, span) == NULL:
                return chunk
        return self.search(span)

    def _count_spans_in(self, int64_t chunk, int64_t stop, int64_t span, int64_t limit):
        cdef int64_t found = 0
        cdef uint8_t *free_at
        cdef uint8_t *used_at
        cdef uint8_t *end = self.used + stop
        while found < limit:
            free_at = <uint8_t *>memchr(self.used + chunk, 0, stop - chunk) if chunk < stop else NULL
            if free_at == NULL:
                break
            used_at = <uint8_t *>memchr(free_at, 1, min(end - free_at, span * (limit - found)))
            chunk = (used_at if used_at != NULL else min(end, free_at + span * (limit - found))) - self.used
            found += (self.used + chunk - free_at) // span
        return found


cdef class Holding:
    """See `slab.holdings.Holding`."""

    def __init__(self):
        self.spans = OrderedDict()
        self.pause = SearchPause()


cdef class Holdings:
    """See `slab.holdings.Holdings`."""

    max_inspections, assign_number, adopt = (
        PureHoldings.max_inspections, PureHoldings.assign_number, PureHoldings.adopt
    )

    def __init__(self):
        self.by_topic = {}
        self._topics = {}

    cpdef Holding holding_of(self, topic):
        found = self.by_topic.get(topic)
        return Holding() if found is None else found

    cpdef add(self, topic, Holding holding, chunk, uint64_t span):
        if not holding.spans and topic not in self.by_topic:
            self.by_topic[topic] = holding
            self.numbered_topic_count += isinstance(topic, int)
        holding.spans[chunk] = span
        holding.chunk_count += span
        self._topics[chunk] = topic

    cpdef remove(self, chunk):
        cdef Holding holding
        topic = self._topics.pop(chunk, None)
        if topic is None:
            return
        holding = self.by_topic[topic]
        holding.chunk_count -= <int64_t>holding.spans.pop(chunk)
        holding.freed_span_count += 1
        self.freed_span_count += 1
        if not holding.spans:
            del self.by_topic[topic]
            self.numbered_topic_count -= isinstance(topic, int)


cdef object division_of(pool, Memory *memory):
    """Return `pool._shares.division`, without its copy of the table if the table is unchanged."""
    shares = pool._shares
    division = shares._cached_division
    cdef bytes table = division[0]
    if memcmp(PyBytes_AS_STRING(table), <uint8_t *>memory.buffer.buf + SUPER_SHARES, PyBytes_GET_SIZE(table)):
        return shares.division
    return division


cdef bint can_spare(pool, Memory *memory, uint64_t span) except -1:
    """See `slab.chunks.ChunkPool.can_spare`."""
    cdef FreeChunks free = pool._free
    cdef int64_t obtainable, capacity, usable
    if pool._reserved_span > 1 or free.count < <int64_t>(pool._reserved + span):
        return pool.can_spare(span)
    _, _, capacity, obtainable, _ = division_of(pool, memory)
    usable = max(0, capacity - <int64_t>pool.stuck_count)
    return free.count + obtainable - <int64_t>span >= usable * KEPT_FREE_PART


cdef int64_t allocate(pool, Memory *memory, uint64_t span, int64_t now_ms) except -2:
    """Open a span: see `slab.chunks.ChunkPool.allocate`.  Return -1 if there is no room."""
    cdef FreeChunks free = pool._free
    pool._now_ms = now_ms
    reclaim(pool, memory, INSPECTIONS_PER_ALLOCATION)
    chunk = free.next_span(span)
    if chunk is None and pool._claim_share(span):
        chunk = free.next_span(span)
    if chunk is None:
        chunk = pool._find_after_reclaim(span, now_ms)
    if chunk is None:
        return -1
    free.use(chunk, span)
    open_chunk(pool, memory, chunk, span, now_ms)
    if pool._watcher is not None:
        pool._watcher.on_opened(chunk)
    return chunk


cdef int reclaim(pool, Memory *memory, int inspections) except -1:
    """See `slab.chunks.ChunkPool._reclaim`."""
    sealed = pool._sealed
    cdef int sealed_inspections = min(len(sealed), inspections - inspections // STUCK_DIVISOR)
    inspect_queue(pool, memory, sealed, sealed_inspections)
    if inspections > sealed_inspections and pool._stuck:
        pool._inspect_stuck(inspections - sealed_inspections)
    return 0


cdef int64_t inspect_queue(pool, Memory *memory, queue, int inspections) except -1:
    """See `slab.chunks.ChunkPool._inspect_queue`."""
    cdef int64_t freed_chunks = 0
    cdef int64_t stuck_before_ms
    cdef uint8_t *at
    cdef int _
    if not inspections:
        return 0
    stuck_before_ms = <int64_t>pool._now_ms - STUCK_AFTER_MS
    is_sealed_queue = queue is pool._sealed
    for _ in range(inspections):
        chunk, _none = queue.popitem(last=False)
        at = memory.chunks + <uint64_t>chunk * CHUNK_BYTES
        if is_settled(memory, chunk):
            freed_chunks += release_chunk(pool, memory, chunk)
        elif is_sealed_queue and <int64_t>load64(at + CHUNK_OPENED_MS) < stuck_before_ms:
            pool._requeue(queue, chunk)
        else:
            queue[chunk] = None
    return freed_chunks


cdef int open_chunk(pool, Memory *memory, uint64_t chunk, uint32_t span, int64_t now_ms) except -1:
    """See `slab.chunks.ChunkPool._open`."""
    cdef uint8_t *at = memory.chunks + chunk * CHUNK_BYTES
    cdef uint32_t generation = pool._next_generation
    cdef uint64_t generation_at = pool._generation_at
    pool._next_generation = pool._generation_after(generation)
    store32(<uint8_t *>memory.buffer.buf + generation_at, generation)
    store32(at, CHUNK_MAGIC)
    store32(at + CHUNK_GENERATION, generation)
    store32(at + CHUNK_STATE, CHUNK_FREE | <uint32_t>pool.owner << 8)
    store32(at + CHUNK_SPAN, span)
    store64(at + CHUNK_RUNS, 0)  # the field CHUNK_ATTEMPT, behind CHUNK_RUNS, becomes 0 as well
    store64(at + CHUNK_OPENED_MS, now_ms)
    store64(at + CHUNK_LAST_ARRIVAL, 0)
    store8(at + CHUNK_STATE, CHUNK_OPEN)  # last: after a crash in between, the chunk is still free
    return 0


cdef int release_chunk(pool, Memory *memory, uint64_t chunk) except -1:
    """Free a settled span: see `slab.chunks.ChunkPool._release`.  Return the number of its chunks."""
    cdef uint8_t *at = memory.chunks + chunk * CHUNK_BYTES
    cdef uint32_t span = load32(at + CHUNK_SPAN)
    cdef uint32_t index
    if pool._watcher is not None:
        pool._watcher.on_released(chunk)
    store32(at + CHUNK_RUNS, 0)
    for index in range(1, span):
        memset(at + <uint64_t>index * CHUNK_BYTES, 0, CHUNK_HEADER)
    store8(at + CHUNK_STATE, CHUNK_FREE)
    if division_of(pool, memory)[4]:  # shares are scarce
        pool._add_free(chunk, span)
    else:
        (<FreeChunks>pool._free).release(chunk, span)
        (<Holdings>pool.holdings).remove(chunk)
    return span


class ChunkPool(PureChunkPool):
    """See `slab.chunks.ChunkPool`."""

    free_chunks_type, holdings_type = FreeChunks, Holdings

    def allocate(self, uint64_t span, int64_t now_ms):
        cdef Memory memory
        attach(self._slab, &memory)
        try:
            chunk = allocate(self, &memory, span, now_ms)
        finally:
            release(&memory)
        return None if chunk < 0 else chunk

    def _inspect_queue(self, queue, int inspections):
        cdef Memory memory
        attach(self._slab, &memory)
        try:
            return inspect_queue(self, &memory, queue, inspections)
        finally:
            release(&memory)
