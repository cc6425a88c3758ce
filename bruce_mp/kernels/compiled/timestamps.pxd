# The timestamps of records, and the window in which they must lie.

from bruce_mp.kernels.compiled.parse cimport ParsedMessage
from libc.stdint cimport int64_t, uint64_t


cdef struct Window:      # a `TimestampWindow`
    int64_t before_ms
    uint64_t width_ms    # before_ms + after_ms
    bint is_clamp


cdef struct ReplacedCount:   # the replaced timestamps in a chain of messages
    int first            # index of the first message with one; NONE if there is none
    int count            # number of these messages

cdef bint replace_timestamps(ParsedMessage *messages, int first, Window *window, int64_t arrived_ms) noexcept nogil
cdef ReplacedCount count_replaced(ParsedMessage *messages, int first, int end) noexcept nogil
