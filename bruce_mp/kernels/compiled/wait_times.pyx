"""Waiting times of record batches' messages: see `kernels/pure/wait_times.py`."""

from libc.stdlib cimport calloc, free

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport raise_damaged

from bruce_mp.kernels.pure.wait_times import WaitTimes


cdef enum:
    MOST_BUCKETS = 32


cdef struct Sums:        # of one topic, or of all
    uint64_t messages, size, waited_ms
    uint64_t delays[MOST_BUCKETS]


cdef struct BucketBounds:    # the longest delay of each bucket except the last
    uint64_t count
    int64_t longest[MOST_BUCKETS]


cdef int read_bounds(bounds_ms, BucketBounds *bounds) except -1:
    bounds.count = len(bounds_ms)
    if bounds.count >= MOST_BUCKETS:
        raise ValueError(f"There are at most {MOST_BUCKETS} buckets, not {bounds.count + 1}.")
    for index, longest in enumerate(bounds_ms):
        bounds.longest[index] = longest
    return 0


cdef inline uint64_t bucket_of(BucketBounds *bounds, uint64_t delay_ms) noexcept nogil:
    cdef uint64_t index = 0
    while index < bounds.count and delay_ms > <uint64_t>bounds.longest[index]:
        index += 1
    return index


cdef inline void add(Sums *sums, Part *part, uint64_t delay_ms, uint64_t bucket) noexcept nogil:
    sums.messages += part.records
    sums.size += part.payload
    sums.waited_ms += delay_ms * part.records
    sums.delays[bucket] += part.records


cdef int add_batch(
    slab, batch, Memory *memory, BucketBounds *bounds, uint64_t now_ms, Sums *total, Sums *topic
) except -1:
    cdef Part part
    cdef Bounds place
    cdef uint64_t arrived_ms, delay_ms, bucket
    for segment in batch.segments:
        read_segment(segment, &part)
        if bounds_of(memory, &part, &place):
            raise_damaged(slab, segment)
        arrived_ms = load64(place.run + RUN_ARRIVED_MS)
        delay_ms = now_ms - arrived_ms if now_ms > arrived_ms else 0
        bucket = bucket_of(bounds, delay_ms)
        add(total, &part, delay_ms, bucket)
        add(topic, &part, delay_ms, bucket)
    return 0


cdef object to_wait_times(Sums *sums, uint64_t buckets):
    cdef uint64_t index
    delays = {index: sums.delays[index] for index in range(buckets) if sums.delays[index]}
    return tuple.__new__(WaitTimes, (sums.messages, sums.size, sums.waited_ms, delays))


def wait_times(slab, batches, bounds_ms, uint64_t now_ms):
    cdef Memory memory
    cdef BucketBounds bounds
    cdef dict places = {}
    cdef uint64_t place
    cdef Sums *sums = <Sums *>calloc(1 + len(batches), sizeof(Sums))  # the first is the total
    if sums == NULL:
        raise MemoryError
    try:
        read_bounds(bounds_ms, &bounds)
        attach(slab, &memory)
        try:
            for batch in batches:
                place = places.setdefault(batch.topic, 1 + len(places))
                add_batch(slab, batch, &memory, &bounds, now_ms, sums, &sums[place])
        finally:
            release(&memory)
        by_topic = {topic: to_wait_times(&sums[<uint64_t>found], bounds.count + 1) for topic, found in places.items()}
        return to_wait_times(sums, bounds.count + 1), by_topic
    finally:
        free(sums)
