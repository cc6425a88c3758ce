# The state of the lanes in a batch, and the batch in the landing zone.

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.parse cimport ParsedBatch


cdef struct Times:           # limits from the lanes
    int64_t due_ms           # of the first run; 0 = no run is open, so waiting needs no limit
    int late_ms


cdef class Work(ParsedBatch):
    """A batch on its way into the lanes."""

    cdef uint64_t *order     # partitions of a group
    cdef int order_room
    cdef list no_room
    cdef bint is_explicit    # clients mark the timestamps of the batch as explicit
    cdef int64_t clock_step_ms   # lead of the wall clock
    cdef bint has_asked      # the pure lanes were called, so `times` may be out of date
    cdef Times times
    cdef uint32_t topics_version

    cdef object outcome(self)


cdef struct Landing:     # the landing zone
    uint8_t *at
    uint8_t *headers
    uint8_t *slots
    uint64_t slot_size
    uint32_t longest     # largest size of a datagram

cdef int landing_of(geometry, Memory *memory, int slots, uint32_t longest, Landing *found) except -1
cdef int read_landed(Landing *landing, Work work, int count, skip) except -1
cdef int put_groups(lanes, Work work, uint8_t *base, int64_t now_ms) except -1
