"""Settlement of delivered record batches: see `kernels/pure/deliveries.py`."""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.redo cimport *
from bruce_mp.kernels.compiled.rows cimport commit_redo
from bruce_mp.kernels.compiled.segments cimport find_state_words, raise_damaged

from bruce_mp.errors import SlabError
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.slab.runs import Segment


cdef enum:
    MAX_BUCKETS = 16
    OTHER_TOPICS = 0     # not the number of any topic


cdef struct Sums:        # of one topic
    uint64_t topic, messages, size
    uint64_t delays[MAX_BUCKETS]   # messages in each bucket


cdef struct Settled:     # a segment that is being settled
    uint64_t topic, wait_ms


cdef inline tuple segments_of(object batch):
    """Return the segments of a `BuiltBatch`."""
    if not PyTuple_Check(batch) or PyTuple_GET_SIZE(batch) != 5:
        raise TypeError(f"{batch!r} is no batch.")
    return <tuple?><object>PyTuple_GET_ITEM(batch, 4)


cdef object as_segment(SegmentRef *ref):
    return Segment(ref.chunk, ref.generation, ref.run, ref.first, ref.records, ref.payload)


cdef inline void prefetch_headers(Memory *memory, SegmentRef *ref) noexcept nogil:
    """Let the processor load the headers of a segment's chunk and run while it reads the next segments."""
    cdef uint8_t *chunk
    if ref.chunk < memory.chunk_count and ref.run < CHUNK_BYTES:
        chunk = memory.chunks + ref.chunk * CHUNK_BYTES
        prefetch(chunk)
        prefetch(chunk + ref.run)
        prefetch(chunk + ref.run + RUN_HEADER - 1)


cdef class Deliveries:
    """See `kernels.pure.deliveries.Deliveries`."""

    cdef object slab, topics
    cdef list names          # of the topics of `all_sums`
    cdef uint64_t row_at, table_at, capacity, max_topics, max_segments
    cdef uint64_t messages_counter, first_bucket, waited_counter
    cdef uint64_t bound_count            # number of buckets - 1: the last bucket has no bound
    cdef int64_t bounds_ms[MAX_BUCKETS]
    cdef Sums *all_sums
    cdef uint64_t count, room            # number of `all_sums`, and how many fit
    cdef uint32_t *indexes               # in `all_sums`, by index of the topic's entry; valid if it has the topic there

    def __init__(
        self, slab, row, topics, bounds_ms, counters, *, max_topics, max_segments=MAX_SETTLED_SEGMENTS
    ):
        self.slab, self.topics, self.names = slab, topics, []
        self.row_at, self.table_at, self.capacity = row._at, slab.geometry.topics_at, slab.geometry.topics
        self.max_topics, self.max_segments = max_topics, max_segments
        self.messages_counter, self.first_bucket, self.waited_counter = counters
        self.bound_count = len(bounds_ms)
        if self.bound_count >= MAX_BUCKETS:
            raise ValueError(f"There are at most {MAX_BUCKETS} buckets, not {self.bound_count + 1}.")
        if max(counters) + self.bound_count >= ROW_COUNTER_CAPACITY:
            raise IndexError(f"Not all counters of {counters} exist.")
        for index, bound_ms in enumerate(bounds_ms):
            self.bounds_ms[index] = bound_ms
        free(self.indexes)
        self.indexes = <uint32_t *>calloc(self.capacity, sizeof(uint32_t))
        if self.indexes == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.indexes)
        free(self.all_sums)

    def __len__(self):
        return self.count

    def settle(self, batches, uint64_t now_ms):
        cdef uint64_t batch_count = 0, segment_count = 0
        cdef SegmentRef *refs
        cdef Settled *settled
        cdef Memory memory
        for batch in batches:
            segment_count += len(segments_of(batch))
            if segment_count > self.max_segments:
                segment_count -= len(segments_of(batch))
                break
            batch_count += 1
        if not batch_count:
            if not batches:
                return 0
            raise SlabError(f"One transaction settles at most {self.max_segments} segments.")
        refs = <SegmentRef *>malloc(segment_count * (sizeof(SegmentRef) + sizeof(Settled)))
        if refs == NULL:
            raise MemoryError
        settled = <Settled *>&refs[segment_count]
        try:
            attach(self.slab, &memory)
            try:
                self.read_batches(batches, batch_count, now_ms, &memory, refs, settled)
                self.settle_segments(&memory, refs, settled, segment_count)
            finally:
                release(&memory)
        finally:
            free(refs)
        return batch_count

    cdef int read_batches(
        self, batches, uint64_t batch_count, uint64_t now_ms, Memory *memory, SegmentRef *refs, Settled *settled
    ) except -1:
        """Read the segments of batches.  Raises SlabError if one disagrees with the headers of its chunk and run."""
        cdef uint64_t count = 0, index, topic, arrived_ms
        cdef Bounds bounds
        for batch in batches:
            if not batch_count:
                break
            batch_count -= 1
            topic = PyLong_AsUnsignedLongLong(<object>PyTuple_GET_ITEM(batch, 0))
            for segment in segments_of(batch):
                read_segment(segment, &refs[count])
                prefetch_headers(memory, &refs[count])
                settled[count].topic = topic
                count += 1
            prefetch(self.refusal_of(memory, topic))
        for index in range(count):
            if find_state_words(memory, &refs[index], &bounds):
                raise_damaged(self.slab, as_segment(&refs[index]))
            arrived_ms = load64(bounds.run + RUN_ARRIVED_MS)
            settled[index].wait_ms = now_ms - arrived_ms if now_ms > arrived_ms else 0
        return 0

    cdef int settle_segments(
        self, Memory *memory, SegmentRef *refs, Settled *settled, uint64_t count
    ) except -1:
        cdef uint8_t *row = <uint8_t *>memory.buffer.buf + self.row_at
        cdef uint8_t *refusal
        cdef uint64_t messages = 0, waited_ms = 0, index, bucket, pair_count = 0
        cdef uint64_t delays[MAX_BUCKETS]
        cdef Sums *sums
        # Read the names before the batches are settled: after that, the router may remove the topics.
        for index in range(count):
            if self.find_sums(settled[index].topic) == NULL:
                self.add_topic(settled[index].topic)
        memset(delays, 0, sizeof(delays))
        for index in range(count):
            refusal = self.refusal_of(memory, settled[index].topic)
            if load32(refusal):
                store32(refusal, 0)
            bucket = self.bucket_of(settled[index].wait_ms)
            delays[bucket] += refs[index].records
            waited_ms += settled[index].wait_ms * refs[index].records
            messages += refs[index].records
            sums = self.find_sums(settled[index].topic)
            if sums == NULL:
                sums = self.find_sums(OTHER_TOPICS)
            sums.messages += refs[index].records
            sums.size += refs[index].payload
            sums.delays[bucket] += refs[index].records
        for bucket in range(self.bound_count + 1):
            pair_count += delays[bucket] != 0
        write_redo(row, DELIVERED, 0, pair_count + 2, count, 0, 0)
        write_pair(row, 0, self.messages_counter, messages)
        pair_count = 1
        for bucket in range(self.bound_count + 1):
            if delays[bucket]:
                write_pair(row, pair_count, self.first_bucket + bucket, delays[bucket])
                pair_count += 1
        write_pair(row, pair_count, self.waited_counter, waited_ms)
        for index in range(count):
            write_segment(row, index, &refs[index])
        commit_redo(memory, row, NULL, refs, count, pair_count + 1, DELIVERED, 0, 0)
        return 0

    cdef uint8_t *refusal_of(self, Memory *memory, uint64_t topic) noexcept:
        return <uint8_t *>memory.buffer.buf + self.table_at + topic % self.capacity * TOPIC_ENTRY + TOPIC_REFUSAL

    cdef uint64_t bucket_of(self, uint64_t wait_ms) noexcept:
        cdef uint64_t bucket = 0
        while bucket < self.bound_count and wait_ms > <uint64_t>self.bounds_ms[bucket]:
            bucket += 1
        return bucket

    cdef Sums *find_sums(self, uint64_t topic) noexcept:
        """Return the sums of a topic; NULL if it has none."""
        cdef uint32_t index = self.indexes[topic % self.capacity]
        return &self.all_sums[index] if index < self.count and self.all_sums[index].topic == topic else NULL

    cdef int add_topic(self, uint64_t topic) except -1:
        """Add sums for a topic; if there are too many topics, only ensure that all further topics have their sums."""
        cdef uint64_t room = 2 * self.room if self.room else 16
        cdef Sums *moved
        name = b""
        if self.count < self.max_topics:
            name = self.topics.name_of(topic)
        elif self.find_sums(OTHER_TOPICS) == NULL:
            topic = OTHER_TOPICS
        else:
            return 0
        if self.count == self.room:
            moved = <Sums *>realloc(self.all_sums, room * sizeof(Sums))
            if moved == NULL:
                raise MemoryError
            self.all_sums, self.room = moved, room
        self.names.append(name)
        memset(&self.all_sums[self.count], 0, sizeof(Sums))
        self.all_sums[self.count].topic = topic
        self.indexes[topic % self.capacity] = <uint32_t>self.count
        self.count += 1
        return 0

    def sums(self):
        cdef uint64_t index, bucket
        cdef Sums *sums
        found = []
        for index in range(self.count):
            sums = &self.all_sums[index]
            delays = {bucket: sums.delays[bucket] for bucket in range(self.bound_count + 1) if sums.delays[bucket]}
            found.append((self.names[index], sums.messages, sums.size, delays))
        return found

    def clear(self):
        self.names.clear()
        self.count = 0
