"""Read the headers of segments' runs, and the timestamps of a segment's records: see `kernels/pure/inspect.py`."""

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.named_tuple cimport named_tuple
from bruce_mp.kernels.compiled.segments cimport is_valid_run, raise_damaged

from bruce_mp.kernels.pure.inspect import RunHeader, TimeRange


cdef object header_of(uint8_t *run):
    values = (
        load32(run + RUN_TOPIC), load8(run + RUN_FLAGS), <int>load32(run + RUN_PARTITION_INDEX),
        load32(run + RUN_PARTITION_COUNT), load32(run + RUN_LARGEST), load64(run + RUN_ARRIVED_MS),
    )
    return named_tuple(RunHeader, values)


def read_headers(slab, segments):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef list found = []
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &ref)
            is_damaged = find_bounds(&memory, &ref, &bounds) or not is_valid_run(&memory, &ref, &bounds)
            found.append(None if is_damaged else header_of(bounds.run))
    finally:
        release(&memory)
    return found


def queue_chosen(slab, segments, dict choices, choose, int64_t max_payload, *, dict known):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef list others = []
    cdef set passed_over = set()
    cdef uint64_t record_count = 0
    cdef bint has_unknown = False
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &ref)
            if find_bounds(&memory, &ref, &bounds) or not is_valid_run(&memory, &ref, &bounds):
                others.append((segment, None))
                continue
            choice = None
            if not load8(bounds.run + RUN_FLAGS) & FLAG_PARTITION_KEY:
                topic = load32(bounds.run + RUN_TOPIC)
                choice = None if has_unknown else choices.get(topic)
                if choice is None and topic not in known:
                    has_unknown = True
                if <int64_t>load32(bounds.run + RUN_LARGEST) > max_payload:
                    choices.pop(topic, None)
                    choice = None
                elif choice is None and not has_unknown and topic not in passed_over:
                    if load32(bounds.base + CHUNK_SPAN) == 1:
                        choice = choose(topic)
                if choice is None:
                    passed_over.add(topic)
            if choice is None:
                others.append((segment, header_of(bounds.run)))
            else:
                partition, queue = choice
                (<list?>queue[1]).append(segment)
                (<list?>queue[2]).append(partition)
                record_count += ref.records
    finally:
        release(&memory)
    return others, record_count


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
