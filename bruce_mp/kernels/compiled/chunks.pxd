# The chunks of an input: see `chunks.pyx`.

from bruce_mp.kernels.compiled.memory cimport *


cdef class FreeChunks:
    cdef public bytearray _used
    cdef uint8_t *used       # the bytes of `_used`
    cdef public int64_t count, _search_from, _absent_span
    cdef public object _released

    cpdef use(self, uint64_t chunk, uint64_t span)
    cpdef release(self, uint64_t chunk, uint64_t span)
    cdef int find_absent_around(self, int64_t chunk, int64_t span) except -1
    cpdef next_span(self, uint64_t span)


cdef class Holding:
    cdef public object spans, alpha, pause
    cdef public int64_t chunk_count, freed_span_count


cdef class Holdings:
    cdef public dict by_topic, _topics
    cdef public int64_t freed_span_count, numbered_topic_count

    cpdef Holding holding_of(self, topic)
    cpdef add(self, topic, Holding holding, chunk, uint64_t span)
    cpdef remove(self, chunk)


cdef bint can_spare(pool, Memory *memory, uint64_t span) except -1
cdef int64_t allocate(pool, Memory *memory, uint64_t span, int64_t now_ms) except -2
