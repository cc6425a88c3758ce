# The state of a batch that is being appended to lanes, and the landing zone.  `base` is the address of the slab.

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.parse cimport ParsedBatch


cdef struct WaitLimits:      # the limits of a wait, copied from the lanes by `read_wait_limits`
    int64_t due_ms           # `next_due_ms`, from which `close_due` has work; 0 = it has none
    int leeway_ms            # the maximum delay of a wake-up


cdef inline int longest_wait_ms(WaitLimits *limits, int64_t until_ms, int64_t now_ms) noexcept nogil:
    """Return the number of ms until `until_ms` or `due_ms`, whichever is earlier; 0 if `close_due` has no work."""
    return <int>max(0, min(until_ms, limits.due_ms) - now_ms)


cdef class IngestBatch(ParsedBatch):
    """A batch that is being appended to the lanes."""

    cdef uint64_t *partition_indexes  # of a group, by first appearance: see `split_group`
    cdef int partition_capacity
    cdef list no_room        # a `NoRoom` for each message without room
    cdef bint keeps_timestamps    # true if clamping must not replace the timestamps of the batch
    cdef int64_t wall_offset_ms   # the time since 1970 minus the steady time
    cdef bint are_limits_stale    # true after a call that may have changed the lanes' limits; then copy `limits` again
    cdef WaitLimits limits
    cdef uint32_t topics_version  # version of the topic table at the last `begin_batch`

    cdef object outcome(self)


cdef struct Landing:     # the landing zone: see `slab/landing_zone.py`
    uint8_t *at
    uint8_t *headers     # the message headers for recvmmsg()
    uint8_t *slots
    uint64_t slot_size
    uint32_t max_size    # of a valid datagram

cdef int find_landing_zone(geometry, Memory *memory, int slots, uint32_t max_size, Landing *found) except -1
cdef int read_landed(Landing *landing, IngestBatch batch, int count, skip) except -1
cdef int begin_batch(lanes, IngestBatch batch, uint8_t *base, uint8_t *row) except -1
cdef int append_groups(lanes, IngestBatch batch, uint8_t *base, int64_t now_ms) except -1
