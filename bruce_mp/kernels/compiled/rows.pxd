from bruce_mp.kernels.compiled.memory cimport *

cdef void land_plain(
    Memory *memory, uint8_t *row, uint8_t *landing, uint64_t *counters, uint64_t *amounts, uint64_t landed
) noexcept nogil
