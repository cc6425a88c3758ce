# The common code of the encoders of records.  The first pass computes the encoded size; the second pass writes the
# records into memory of that size.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from bruce_mp.kernels.compiled.memory cimport *


cdef struct Output:
    uint8_t *at              # address of the next byte to write; in the first pass, the size so far
    uint8_t *end             # the end of the memory; NULL in the first pass
    uint64_t records         # number of records so far
    int64_t first_timestamp, max_timestamp
    int magic                # of a message set
    int64_t empty_value      # length field of a value without bytes, if the record's options do not tell


cdef inline int64_t empty_key_length(uint8_t *record) noexcept nogil:
    """Return the content of the length field of a key without bytes: 0, or -1 for null."""
    return 0 if load8(record + RECORD_OPTIONS) & OPTION_EMPTY_KEY else -1


cdef inline int64_t empty_value_length(Output *out, uint8_t *record) noexcept nogil:
    """Return the content of the length field of a value without bytes: 0, or -1 for null."""
    cdef int options = load8(record + RECORD_OPTIONS)
    if options & OPTION_NULL_VALUE:
        return -1
    return 0 if options & OPTION_EMPTY_VALUE else out.empty_value


cdef inline uint8_t *put_big32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, (value >> 16) & 0xFF, (value >> 8) & 0xFF, value & 0xFF
    return at + 4


cdef inline uint8_t *put_big64(uint8_t *at, uint64_t value) noexcept nogil:
    return put_big32(put_big32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t *put_uvarint(uint8_t *at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F) | 0x80
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


ctypedef int (*PutRecord)(Output *out, uint8_t *record, RecordFields *fields) noexcept nogil
# Appends a record to `out`, or in the first pass only adds its size; returns 0, or -1 for a damaged record.


cdef inline int put_segments(
    Memory *memory, SegmentRef *refs, uint64_t count, Output *out, PutRecord put
) noexcept nogil:
    """Append segments to `out`, or in the first pass only add their size; return 0, or -1 for a damaged segment."""
    cdef Bounds bounds
    cdef RecordFields fields
    cdef uint8_t *at
    cdef uint64_t index, _
    for index in range(count):
        if find_bounds(memory, &refs[index], &bounds):
            return -1
        at = bounds.first
        for _ in range(refs[index].records):
            if read_record(at, bounds.end, &fields) or put(out, at, &fields):
                return -1
            at = fields.next
    return 0


cdef inline object encode_in_two_passes(object slab, tuple segments, Output *out, PutRecord put):
    """Return the encoded records of segments; None if a segment disagrees with the headers of its chunk and run.

    The caller sets `magic` and `empty_value` of `out`.  The call stores the number of records and their timestamps.
    """
    cdef Memory memory
    attach(slab, &memory)
    try:
        return encode_attached(&memory, segments, out, put)
    finally:
        release(&memory)


cdef inline object encode_attached(Memory *memory, tuple segments, Output *out, PutRecord put):
    """Do the work of `encode_in_two_passes` in the attached memory of a slab."""
    cdef Output measured = out[0]  # for the first pass, which only measures
    cdef uint64_t count = 0
    cdef int failed
    cdef SegmentRef *refs = <SegmentRef *>malloc((len(segments) or 1) * sizeof(SegmentRef))
    if refs == NULL:
        raise MemoryError
    try:
        for segment in segments:
            read_segment(segment, &refs[count])
            count += 1
        with nogil:
            failed = put_segments(memory, refs, count, &measured, put)
        if failed:
            return None
        data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>measured.at)
        out.at = <uint8_t *>PyBytes_AS_STRING(data)
        out.end = out.at + <uint64_t>measured.at
        with nogil:
            failed = put_segments(memory, refs, count, out, put)
        return None if failed or out.at != out.end else data
    finally:
        free(refs)
