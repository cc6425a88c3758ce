"""The waiting times of record batches' messages: see `kernels/pure/wait_times.py`."""

from libc.stdlib cimport calloc, free

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport raise_damaged

from bruce_mp.kernels.pure.wait_times import WaitTimes


cdef enum:
    MAX_BUCKETS = 32


cdef struct Sums:        # the sums of one topic, or of all topics
    uint64_t messages, size, waited_ms
    uint64_t delays[MAX_BUCKETS]   # messages in each bucket


cdef struct BucketBounds:    # of all buckets except the last, which has no bound
    uint64_t count
    int64_t max_ms[MAX_BUCKETS]


cdef int read_bounds(bounds_ms, BucketBounds *buckets) except -1:
    buckets.count = len(bounds_ms)
    if buckets.count >= MAX_BUCKETS:
        raise ValueError(f"There are at most {MAX_BUCKETS} buckets, not {buckets.count + 1}.")
    for index, max_ms in enumerate(bounds_ms):
        buckets.max_ms[index] = max_ms
    return 0


cdef inline uint64_t bucket_of(BucketBounds *buckets, uint64_t wait_ms) noexcept nogil:
    cdef uint64_t index = 0
    while index < buckets.count and wait_ms > <uint64_t>buckets.max_ms[index]:
        index += 1
    return index


cdef inline void add(Sums *sums, SegmentRef *ref, uint64_t wait_ms, uint64_t bucket) noexcept nogil:
    sums.messages += ref.records
    sums.size += ref.payload
    sums.waited_ms += wait_ms * ref.records
    sums.delays[bucket] += ref.records


cdef int add_batch(
    slab, batch, Memory *memory, BucketBounds *buckets, uint64_t now_ms, Sums *total, Sums *topic
) except -1:
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef uint64_t arrived_ms, wait_ms, bucket
    for segment in batch.segments:
        read_segment(segment, &ref)
        if find_bounds(memory, &ref, &bounds):
            raise_damaged(slab, segment)
        arrived_ms = load64(bounds.run + RUN_ARRIVED_MS)
        wait_ms = now_ms - arrived_ms if now_ms > arrived_ms else 0
        bucket = bucket_of(buckets, wait_ms)
        add(total, &ref, wait_ms, bucket)
        add(topic, &ref, wait_ms, bucket)
    return 0


cdef object to_wait_times(Sums *sums, uint64_t bucket_count):
    cdef uint64_t index
    delays = {index: sums.delays[index] for index in range(bucket_count) if sums.delays[index]}
    return tuple.__new__(WaitTimes, (sums.messages, sums.size, sums.waited_ms, delays))


def wait_times(slab, batches, bounds_ms, uint64_t now_ms):
    cdef Memory memory
    cdef BucketBounds buckets
    cdef dict index_by_topic = {}   # indexes in `sums`
    cdef uint64_t index
    cdef Sums *sums = <Sums *>calloc(1 + len(batches), sizeof(Sums))  # the total, then the sums of each topic
    if sums == NULL:
        raise MemoryError
    try:
        read_bounds(bounds_ms, &buckets)
        attach(slab, &memory)
        try:
            for batch in batches:
                index = index_by_topic.setdefault(batch.topic, 1 + len(index_by_topic))
                add_batch(slab, batch, &memory, &buckets, now_ms, sums, &sums[index])
        finally:
            release(&memory)
        bucket_count = buckets.count + 1
        by_topic = {topic: to_wait_times(&sums[<uint64_t>each], bucket_count) for topic, each in index_by_topic.items()}
        return to_wait_times(sums, bucket_count), by_topic
    finally:
        free(sums)
