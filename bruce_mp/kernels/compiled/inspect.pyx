"""Read the timestamps of a segment's records: see `kernels/pure/inspect.py`."""

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport raise_damaged

from bruce_mp.kernels.pure.inspect import TimeRange


def time_range(slab, segment):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef RecordFields fields
    cdef int64_t stamp, earliest = 0, latest = 0
    cdef uint64_t index
    cdef uint8_t *at
    attach(slab, &memory)
    try:
        read_segment(segment, &ref)
        if find_bounds(&memory, &ref, &bounds) or check_records(&bounds, ref.records):
            return raise_damaged(slab, segment)
        at = bounds.first
        for index in range(ref.records):
            read_record(at, bounds.end, &fields)
            stamp = <int64_t>load64(at + RECORD_TIMESTAMP)
            earliest = stamp if index == 0 or stamp < earliest else earliest
            latest = stamp if index == 0 or stamp > latest else latest
            at = fields.next
        return TimeRange(earliest, latest)
    finally:
        release(&memory)
