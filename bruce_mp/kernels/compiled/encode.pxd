from bruce_mp.kernels.compiled.memory cimport *


cdef tuple encode_batch(
    object slab, Memory *memory, tuple segments, int64_t producer_id, int epoch, int sequence, int64_t empty_value
)
