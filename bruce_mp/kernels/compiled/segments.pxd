from bruce_mp.kernels.compiled.memory cimport *

cdef object raise_damaged(object slab, object segment)
cdef int find_state_words(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil
cdef bint any_unsettled(Bounds *bounds, uint64_t records) noexcept nogil
cdef void settle_one(Bounds *bounds, uint64_t records, uint32_t outcome, uint8_t reason) noexcept nogil
cdef bint is_sound_run(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil
