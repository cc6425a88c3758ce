from bruce_mp.kernels.compiled.lanes cimport IngestBatch
from libc.stdint cimport int64_t

cdef int read_wait_limits(lanes, IngestBatch batch) except -1
cdef int64_t monotonic_us() noexcept nogil
cdef void sleep_us(int64_t microseconds) noexcept
