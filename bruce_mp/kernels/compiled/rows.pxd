from bruce_mp.kernels.compiled.memory cimport *

cdef void commit_redo(
    Memory *memory, uint8_t *row, uint8_t *landing, SegmentRef *refs, uint64_t segment_count, uint64_t pair_count,
    uint32_t outcome, uint8_t reason, uint64_t landed,
) noexcept nogil

cdef void commit_landed_batch(
    Memory *memory, uint8_t *row, uint8_t *landing, uint64_t *counters, uint64_t *amounts, uint64_t landed
) noexcept nogil

cdef void commit_counted_batch(
    Memory *memory, uint8_t *row, uint64_t *counters, uint64_t *amounts, int counter_count, uint64_t counted
) noexcept nogil
