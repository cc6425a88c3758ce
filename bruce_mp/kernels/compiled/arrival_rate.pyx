"""The arrival rate of messages, and the length of a nap: see `kernels/pure/arrival_rate.py`."""

from bruce_mp.kernels.pure import arrival_rate as pure


cdef int64_t WINDOW_US = pure.WINDOW_US
cdef int64_t AWAKE_INTERVAL_US = pure.AWAKE_INTERVAL_US
cdef int64_t MIN_MESSAGES = pure.MIN_MESSAGES
cdef int64_t MIN_NAP_US = pure.MIN_NAP_US
cdef int64_t OVERHEAD_BYTES = pure.OVERHEAD_BYTES


cdef class ArrivalRate:
    """See `kernels.pure.arrival_rate.ArrivalRate`."""

    def __init__(self, coalescing=pure.NO_COALESCING):
        self.max_nap_us, self.max_messages, self.max_bytes = coalescing

    cpdef void add(self, int64_t message_count, int64_t size) noexcept:
        self.message_count += message_count
        self.charged_bytes += message_count * OVERHEAD_BYTES + 2 * size

    cpdef int64_t nap_us(self, int64_t now_us, int64_t left_us) noexcept:
        cdef double nap_us = self.max_nap_us, messages_per_us, bytes_per_us
        if now_us - self.window_start_us >= WINDOW_US:
            self.end_window(now_us)
        if now_us - self.awake_end_us > AWAKE_INTERVAL_US:
            return 0  # a window without naps is due
        messages_per_us = max(self.messages_per_us, self.awake_messages_per_us)
        bytes_per_us = max(self.bytes_per_us, self.awake_bytes_per_us)
        if nap_us * messages_per_us > self.max_messages:
            nap_us = self.max_messages / messages_per_us
        if nap_us * bytes_per_us > self.max_bytes:
            nap_us = self.max_bytes / bytes_per_us
        if min(nap_us, left_us) < MIN_NAP_US or nap_us * self.messages_per_us < MIN_MESSAGES:
            return 0
        self.has_slept = True
        return min(<int64_t>nap_us, left_us)

    cdef void end_window(self, int64_t now_us) noexcept:
        cdef double elapsed_us = now_us - self.window_start_us
        self.messages_per_us, self.bytes_per_us = self.message_count / elapsed_us, self.charged_bytes / elapsed_us
        if not self.has_slept:
            self.awake_messages_per_us, self.awake_bytes_per_us = self.messages_per_us, self.bytes_per_us
            self.awake_end_us = now_us
        self.window_start_us, self.message_count, self.charged_bytes, self.has_slept = now_us, 0, 0, False
