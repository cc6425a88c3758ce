# The redo record of a process row, and the transaction of a move: see slab/rows.py.

from bruce_mp.kernels.compiled.memory cimport *


cdef enum:               # offsets and sizes in the redo record, which begins with 1 if it is valid
    REDO_OUTCOME = 4     # the settled state; for a move, the state word after the move
    REDO_REASON = 8      # the discard reason; for a move, the state word before the move
    REDO_COUNTERS = 12   # number of pairs
    REDO_SEGMENTS = 16   # number of segments
    REDO_LANDED = 20     # number of landing slots to empty
    REDO_BASE = 24       # new LANDING_BASE_ARRIVAL, or a stream input's new ROW_COUNTED; 0: neither
    REDO_PAIRS = 32      # offset of the first pair
    PAIR = 16            # bytes of a pair: number of a counter, its new value
    MAX_COUNTERS = 32
    SEGMENTS_AT = 544    # offset of the first segment, behind the space for MAX_COUNTERS pairs
    SEGMENT = 24         # bytes of a segment


cdef struct MoveRef:         # the fields of a `Move`
    uint32_t before, after
    uint64_t counter


cdef inline int read_move(object move, MoveRef *found) except -1:
    found.before, found.after, found.counter = move
    if found.counter >= ROW_COUNTER_CAPACITY:
        raise IndexError(f"There is no counter {found.counter}.")
    return 0


cdef inline uint8_t *counter_at(uint8_t *row, uint64_t counter) noexcept nogil:
    return row + ROW_COUNTERS + 8 * counter


cdef inline void make_version_odd(uint8_t *row) noexcept nogil:
    store64(row + ROW_VERSION, load64(row + ROW_VERSION) | 1)


cdef inline void make_version_even(uint8_t *row) noexcept nogil:
    store64(row + ROW_VERSION, load64(row + ROW_VERSION) + 1)


cdef inline void write_redo(
    uint8_t *row, uint32_t outcome, uint32_t reason, uint64_t counters, uint64_t segments, uint64_t landed,
    uint64_t base,
) noexcept nogil:
    """Mark the redo record void, and write its fixed fields.

    `counters` and `segments` are the numbers of pairs and segments that follow, `landed` is the number
    of landing slots to empty.
    """
    cdef uint8_t *redo = row + ROW_REDO
    store32(redo, 0)
    store32(redo + REDO_OUTCOME, outcome)
    store32(redo + REDO_REASON, reason)
    store32(redo + REDO_COUNTERS, <uint32_t>counters)
    store32(redo + REDO_SEGMENTS, <uint32_t>segments)
    store32(redo + REDO_LANDED, <uint32_t>landed)
    store64(redo + REDO_BASE, base)


cdef inline void write_pair(uint8_t *row, uint64_t index, uint64_t counter, uint64_t amount) noexcept nogil:
    """Write pair `index` of the redo record: the number of a counter, and its present value plus `amount`."""
    cdef uint8_t *pair = row + ROW_REDO + REDO_PAIRS + index * PAIR
    store64(pair, counter)
    store64(pair + 8, load64(counter_at(row, counter)) + amount)


cdef inline void write_segment(uint8_t *row, uint64_t index, SegmentRef *ref) noexcept nogil:
    cdef uint8_t *at = row + ROW_REDO + SEGMENTS_AT + index * SEGMENT
    store32(at, <uint32_t>ref.chunk)
    store32(at + 4, <uint32_t>ref.generation)
    store32(at + 8, <uint32_t>ref.run)
    store32(at + 12, <uint32_t>ref.first)
    store32(at + 16, <uint32_t>ref.records)
    store32(at + 20, <uint32_t>ref.payload)
