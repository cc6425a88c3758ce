from libc.stdint cimport int64_t, uint8_t


cdef enum:
    WHOLE = -1           # the next bytes are a whole message

cdef int find_stop(uint8_t *base, int64_t at, int64_t end, int64_t max_size, int64_t *size) noexcept nogil
