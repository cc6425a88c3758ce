# The timestamps of records, and the window in which they must lie.

from bruce_mp.kernels.compiled.parse cimport Item
from libc.stdint cimport int64_t, uint64_t


cdef struct Window:      # a `TimestampWindow`
    int64_t before_ms
    uint64_t width_ms    # before_ms + after_ms
    bint is_clamp


cdef struct Replaced:    # the replaced timestamps among some messages
    int first            # index of the first message with one; NONE if there is none
    int count            # number of these messages

cdef bint replace_timestamps(Item *items, int first, Window *window, int64_t arrived_ms) noexcept nogil
cdef Replaced count_replaced(Item *items, int first, int end) noexcept nogil
