# Access to the slab's memory: atomic loads, ordered stores, and the checks of a chunk, run or record before its use.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from bruce_mp.kernels.compiled.layout cimport *

cdef extern from "Python.h":
    bint PyTuple_Check(object)
    Py_ssize_t PyTuple_GET_SIZE(object)
    PyObject *PyTuple_GET_ITEM(object, Py_ssize_t)
    uint64_t PyLong_AsUnsignedLongLong(object) except? <uint64_t>-1  # with Py_LIMITED_API faster than Cython's


cdef extern from *:
    """
    #ifdef Py_LIMITED_API /* Set by scripts/build-wheels; the stable ABI has no macros, only functions. */
    #define PyBytes_AS_STRING PyBytes_AsString
    #define PyBytes_GET_SIZE PyBytes_Size
    #define PyTuple_GET_ITEM PyTuple_GetItem
    #define PyTuple_GET_SIZE PyTuple_Size
    #endif
    /* Other processes read and write the same memory.  A load occurs once, at its place in the source, so that a kernel
       uses the value that it has checked.  A store is atomic.  It occurs after all earlier accesses in the source, and
       before all later stores. */
    #define load8(at) __atomic_load_n((const uint8_t *)(at), __ATOMIC_ACQUIRE)
    #define load16(at) __atomic_load_n((const uint16_t *)(at), __ATOMIC_ACQUIRE)
    #define load32(at) __atomic_load_n((const uint32_t *)(at), __ATOMIC_ACQUIRE)
    #define load64(at) __atomic_load_n((const uint64_t *)(at), __ATOMIC_ACQUIRE)
    #define store_in_order(type, at, value) do { \\
        __atomic_store_n((type *)(at), (type)(value), __ATOMIC_RELEASE); \\
        __atomic_thread_fence(__ATOMIC_RELEASE); \\
    } while (0)
    #define store8(at, value) store_in_order(uint8_t, at, value)
    #define store16(at, value) store_in_order(uint16_t, at, value)
    #define store32(at, value) store_in_order(uint32_t, at, value)
    #define store64(at, value) store_in_order(uint64_t, at, value)
    #define prefetch(at) __builtin_prefetch(at) /* A hint without a load, so any address is allowed. */
    #define unlikely_(condition) __builtin_expect(!!(condition), 0)
    """
    uint8_t load8(const uint8_t *) noexcept nogil
    uint16_t load16(const uint8_t *) noexcept nogil
    uint32_t load32(const uint8_t *) noexcept nogil
    uint64_t load64(const uint8_t *) noexcept nogil
    void store8(uint8_t *, uint8_t) noexcept nogil
    void store16(uint8_t *, uint16_t) noexcept nogil
    void store32(uint8_t *, uint32_t) noexcept nogil
    void store64(uint8_t *, uint64_t) noexcept nogil
    void prefetch(const uint8_t *) noexcept nogil
    bint unlikely_(bint) noexcept nogil


cdef struct Memory:      # a slab, mapped from `attach` to `release`
    Py_buffer buffer
    uint8_t *chunks      # the first chunk
    uint64_t chunk_count


cdef struct SegmentRef:  # the fields of a `Segment`
    uint64_t chunk, generation, run, first, records, payload


cdef struct Bounds:      # the checked location of a segment
    uint8_t *base        # the segment's chunk
    uint8_t *run
    uint8_t *first       # the segment's first record
    uint8_t *end         # of the run
    bint is_whole        # true if the segment has all records of the run


cdef struct RecordFields:    # the fields of a record that lies within its run
    uint8_t *key
    uint8_t *value
    uint8_t *headers
    uint64_t key_length, value_length, headers_length
    uint64_t payload     # sum of the three lengths
    uint8_t *next        # the next record


cdef inline bint is_settled_state(uint8_t state) noexcept nogil:
    return state == DELIVERED or state == DISCARDED


cdef inline int attach(object slab, Memory *memory) except -1:
    """Describe the slab's memory in `memory`, and keep it mapped until `release`."""
    PyObject_GetBuffer(slab.view, &memory.buffer, PyBUF_SIMPLE)
    cdef uint64_t at = PyLong_AsUnsignedLongLong(slab.chunks_at)
    memory.chunk_count = PyLong_AsUnsignedLongLong(slab.geometry.chunks)
    memory.chunks = <uint8_t *>memory.buffer.buf + at
    if at + memory.chunk_count * CHUNK_BYTES > <uint64_t>memory.buffer.len:
        PyBuffer_Release(&memory.buffer)
        raise ValueError("The slab's geometry goes past its end.")
    return 0


cdef inline void release(Memory *memory) noexcept:
    PyBuffer_Release(&memory.buffer)


cdef inline int read_segment(object segment, SegmentRef *ref) except -1:
    if not PyTuple_Check(segment) or PyTuple_GET_SIZE(segment) != 6:
        raise TypeError(f"{segment!r} is no segment.")
    ref.chunk = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 0))
    ref.generation = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 1))
    ref.run = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 2))
    ref.first = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 3))
    ref.records = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 4))
    ref.payload = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(segment, 5))
    return 0


cdef inline uint64_t body_offset(uint8_t *run) noexcept nogil:
    """Return the bytes from the start of a run to its first record."""
    return RUN_HEADER + ((<uint64_t>load16(run + RUN_NAME_LENGTH) + 7) & <uint64_t>~7)


cdef inline uint8_t *span_end(Memory *memory, uint64_t chunk) noexcept nogil:
    """Return the end of a chunk's span; NULL if the chunk has no valid header."""
    if chunk >= memory.chunk_count:
        return NULL
    cdef uint8_t *base = memory.chunks + chunk * CHUNK_BYTES
    cdef uint64_t span = load32(base + CHUNK_SPAN)
    if load32(base) != CHUNK_MAGIC or span < 1 or span > memory.chunk_count - chunk:
        return NULL
    return base + span * CHUNK_BYTES


cdef inline int find_bounds(Memory *memory, SegmentRef *ref, Bounds *found) noexcept nogil:
    """Check and locate a segment: see `slab.runs.segment_bounds`.  Return 0 if it is valid, otherwise -1."""
    cdef uint8_t *limit = span_end(memory, ref.chunk)
    if limit == NULL or ref.run & 7 or ref.run < CHUNK_HEADER or ref.first & 7 or not ref.records:
        return -1
    cdef uint8_t *base = memory.chunks + ref.chunk * CHUNK_BYTES
    if ref.run > <uint64_t>(limit - base) - RUN_HEADER:
        return -1
    cdef uint8_t *run = base + ref.run
    cdef uint32_t generation = load32(run + RUN_GENERATION)
    if load32(run + RUN_MAGIC_AT) != RUN_MAGIC or generation != load32(base + CHUNK_GENERATION):
        return -1
    if generation != ref.generation:
        return -1
    cdef uint64_t size = load32(run + RUN_SIZE)
    cdef uint64_t body = body_offset(run)
    if size > <uint64_t>(limit - run) or ref.first < ref.run + body or ref.first >= ref.run + size:
        return -1
    found.base, found.run, found.first, found.end = base, run, base + ref.first, run + size
    found.is_whole = ref.first == ref.run + body and load32(run + RUN_COUNT) == ref.records
    return 0


cdef inline int read_record(uint8_t *record, uint8_t *end, RecordFields *found) noexcept nogil:
    """Read a record's fields; return 0 if the record ends at or before `end` and its state is valid, otherwise -1."""
    if record + RECORD_HEADER > end:
        return -1
    cdef uint64_t key = load32(record + RECORD_KEY_LENGTH)
    cdef uint64_t value = load32(record + RECORD_VALUE_LENGTH)
    cdef uint64_t headers = load16(record + RECORD_HEADERS_LENGTH)
    cdef uint64_t payload = key + value + headers
    cdef uint64_t size = (RECORD_HEADER + payload + 7) & <uint64_t>~7
    if size > <uint64_t>(end - record) or load8(record + RECORD_WORD) >= SPLIT:  # only a run can be SPLIT
        return -1
    found.key = record + RECORD_HEADER
    found.value = found.key + key
    found.headers = found.value + value
    found.key_length, found.value_length, found.headers_length = key, value, headers
    found.payload, found.next = payload, record + size
    return 0


cdef inline int check_records(Bounds *bounds, uint64_t records) noexcept nogil:
    """Return 0 if all records of a segment are valid, otherwise -1; `records` is their number."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    for _ in range(records):
        if read_record(at, bounds.end, &fields):
            return -1
        at = fields.next
    return 0
