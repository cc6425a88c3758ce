"""The opening, inspection and release of chunks: see `slab/chunks.py`; its `ChunkPool` is the base class."""

from libc.string cimport memset

from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.slab import chunks as pure
from bruce_mp.slab.chunks import ChunkPool as PureChunkPool


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


class ChunkPool(PureChunkPool):
    """See `slab.chunks.ChunkPool`."""

    def _inspect_queue(self, queue, inspections):
        cdef Memory memory
        cdef int freed_chunks = 0, _
        cdef int64_t stuck_before_ms = self._now_ms - STUCK_AFTER_MS
        cdef uint8_t *at
        if not inspections:
            return 0
        attach(self._slab, &memory)
        try:
            is_sealed_queue = queue is self._sealed
            for _ in range(inspections):
                chunk, _none = queue.popitem(last=False)
                at = memory.chunks + <uint64_t>chunk * CHUNK_BYTES
                if is_settled(&memory, chunk):
                    freed_chunks += release_chunk(self, &memory, chunk)
                elif is_sealed_queue and <int64_t>load64(at + CHUNK_OPENED_MS) < stuck_before_ms:
                    self._requeue(queue, chunk)
                else:
                    queue[chunk] = None
        finally:
            release(&memory)
        return freed_chunks

    def _open(self, chunk, span, now_ms):
        cdef Memory memory
        cdef uint8_t *at
        cdef uint32_t generation = self._next_generation
        cdef uint64_t generation_at = self._generation_at
        self._next_generation = self._generation_after(generation)
        attach(self._slab, &memory)
        at = memory.chunks + <uint64_t>chunk * CHUNK_BYTES
        store32(<uint8_t *>memory.buffer.buf + generation_at, generation)
        store32(at, CHUNK_MAGIC)
        store32(at + CHUNK_GENERATION, generation)
        store32(at + CHUNK_STATE, CHUNK_FREE | <uint32_t>self.owner << 8)
        store32(at + CHUNK_SPAN, span)
        store64(at + CHUNK_RUNS, 0)  # the field CHUNK_ATTEMPT, behind CHUNK_RUNS, becomes 0 as well
        store64(at + CHUNK_OPENED_MS, now_ms)
        store64(at + CHUNK_LAST_ARRIVAL, 0)
        store8(at + CHUNK_STATE, CHUNK_OPEN)  # last: after a crash in between, the chunk is still free
        release(&memory)


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
    pool._add_free(chunk, span)
    return span
