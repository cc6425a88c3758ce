# The state of the lanes in a batch, and the batch in the landing zone.

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.parse cimport ParsedBatch


cdef struct Times:           # limits of a wait, copied from the pure lanes
    int64_t due_ms           # `next_due_ms`: `close_due` has work; 0 = none
    int leeway_ms            # the time by which a wake-up may be late


cdef inline int wait_until(Times *times, int64_t until_ms, int64_t now_ms) noexcept nogil:
    """Return the ms until `close_due` has work, but at most until `until_ms`; 0 if it has none."""
    return <int>max(0, min(until_ms, times.due_ms) - now_ms)


cdef class IngestBatch(ParsedBatch):
    """A batch that is being appended to the lanes."""

    cdef uint64_t *order     # partitions of a group, by first appearance
    cdef int order_capacity
    cdef list no_room
    cdef bint keeps_timestamps    # clamping must not replace the timestamps of the batch
    cdef int64_t wall_offset_ms   # the time since 1970 less the steady time
    cdef bint are_times_stale     # true after a call of the pure lanes, which may have changed the times
    cdef Times times
    cdef uint32_t topics_version

    cdef object outcome(self)


cdef struct Landing:     # the landing zone
    uint8_t *at
    uint8_t *headers     # of messages, for recvmmsg()
    uint8_t *slots
    uint64_t slot_size
    uint32_t max_size    # of a datagram

cdef int find_landing_zone(geometry, Memory *memory, int slots, uint32_t max_size, Landing *found) except -1
cdef int read_landed(Landing *landing, IngestBatch batch, int count, skip) except -1
cdef int begin_batch(lanes, IngestBatch batch, uint8_t *base, uint8_t *row) except -1
cdef int append_groups(lanes, IngestBatch batch, uint8_t *base, int64_t now_ms) except -1
