from libc.stdint cimport int64_t


cdef class ArrivalRate:
    cdef int64_t max_nap_us, max_messages, max_bytes   # the fields of `Coalescing`
    cdef int64_t window_start_us, message_count, charged_bytes   # of the present window
    cdef bint has_slept      # in the present window
    cdef double messages_per_us, bytes_per_us   # of the last window
    cdef int64_t awake_end_us   # end of the last window without a nap
    cdef double awake_messages_per_us, awake_bytes_per_us   # of that window

    cpdef void add(self, int64_t message_count, int64_t size) noexcept
    cpdef int64_t nap_us(self, int64_t now_us, int64_t left_us) noexcept
    cdef void end_window(self, int64_t now_us) noexcept
