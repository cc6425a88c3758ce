from libc.stdint cimport int64_t


cdef class ArrivalRate:
    """The rate of one socket's messages."""

    cdef int64_t max_nap_us, max_messages, max_bytes
    cdef int64_t since_us, messages, charged_bytes   # of the present window
    cdef bint has_slept                   # in that window
    cdef double messages_per_us, bytes_per_us
    cdef int64_t awake_us
    cdef double awake_messages_per_us, awake_bytes_per_us

    cpdef void add(self, int64_t messages, int64_t size) noexcept
    cpdef int64_t nap_us(self, int64_t now_us) noexcept
    cdef void end_window(self, int64_t now_us) noexcept
