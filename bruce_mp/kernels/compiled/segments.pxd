from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.redo cimport MoveRef


cdef struct LocatedSegment:   # a segment and its checked location
    SegmentRef ref
    Bounds bounds


# Below, `records` is the number of a segment's records.
cdef object raise_damaged(object slab, object segment)
cdef int find_state_words(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil
# -1 is a result of `locate_matching`, so an exception returns -2.
cdef int locate_matching(Memory *memory, object segment, uint32_t expected, LocatedSegment *found) except -2
cdef void move_located(uint8_t *row, MoveRef *move, LocatedSegment *moved, uint64_t count) noexcept nogil
cdef bint any_unsettled(Bounds *bounds, uint64_t records) noexcept nogil
cdef void settle_segment(Bounds *bounds, uint64_t records, uint32_t outcome, uint8_t reason) noexcept nogil
cdef bint is_valid_run(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil
