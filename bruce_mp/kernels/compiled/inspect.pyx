"""Read the headers of segments' runs, and the timestamps of a segment's records: see `kernels/pure/inspect.py`."""

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.named_tuple cimport named_tuple
from bruce_mp.kernels.compiled.segments cimport is_valid_run, raise_damaged

from bruce_mp.kernels.pure.inspect import RunHeader, TimeRange


def read_headers(slab, segments):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef list found = []
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &ref)
            if find_bounds(&memory, &ref, &bounds) or not is_valid_run(&memory, &ref, &bounds):
                found.append(None)
                continue
            values = (
                load32(bounds.run + RUN_TOPIC), load8(bounds.run + RUN_FLAGS),
                <int>load32(bounds.run + RUN_PARTITION_INDEX), load32(bounds.run + RUN_PARTITION_COUNT),
                load32(bounds.run + RUN_LARGEST), load64(bounds.run + RUN_ARRIVED_MS),
            )
            found.append(named_tuple(RunHeader, values))
    finally:
        release(&memory)
    return found


def time_range(slab, segment):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef RecordFields fields
    cdef int64_t timestamp, earliest = 0, latest = 0
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
            timestamp = <int64_t>load64(at + RECORD_TIMESTAMP)
            earliest = timestamp if index == 0 or timestamp < earliest else earliest
            latest = timestamp if index == 0 or timestamp > latest else latest
            at = fields.next
        return TimeRange(earliest, latest)
    finally:
        release(&memory)
