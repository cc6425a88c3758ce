# The redo record of a process row, and the transaction of a move: see slab/rows.py.

from bruce_mp.kernels.compiled.memory cimport *


cdef enum:
    REDO_OUTCOME = 4
    REDO_REASON = 8
    REDO_COUNTERS = 12
    REDO_SEGMENTS = 16
    REDO_LANDED = 20
    REDO_BASE = 24
    REDO_PAIRS = 32
    PAIR = 16
    MAX_COUNTERS = 32
    SEGMENTS_AT = 544
    SEGMENT = 24


cdef struct MoveRef:         # the fields of a `Move`
    uint32_t before, after
    uint64_t counter


cdef inline int read_move(object move, MoveRef *found) except -1:
    found.before, found.after, found.counter = move
    if found.counter >= ROW_COUNTER_CAPACITY:
        raise IndexError(f"There is no counter {found.counter}.")
    return 0


cdef inline void write_segment(uint8_t *row, uint64_t index, SegmentRef *ref) noexcept nogil:
    cdef uint8_t *at = row + ROW_REDO + SEGMENTS_AT + index * SEGMENT
    store32(at, <uint32_t>ref.chunk)
    store32(at + 4, <uint32_t>ref.generation)
    store32(at + 8, <uint32_t>ref.run)
    store32(at + 12, <uint32_t>ref.first)
    store32(at + 16, <uint32_t>ref.records)
    store32(at + 20, <uint32_t>ref.payload)


cdef inline void write_move(uint8_t *row, MoveRef *move, uint64_t segments, uint64_t records) noexcept nogil:
    """Write the redo record of a move, before its segments."""
    cdef uint8_t *redo = row + ROW_REDO
    store32(redo, 0)
    store32(redo + REDO_OUTCOME, move.after)
    store32(redo + REDO_REASON, move.before)
    store32(redo + REDO_COUNTERS, 1)
    store32(redo + REDO_SEGMENTS, <uint32_t>segments)
    store32(redo + REDO_LANDED, 0)
    store64(redo + REDO_BASE, 0)
    store64(redo + REDO_PAIRS, move.counter)
    store64(redo + REDO_PAIRS + 8, load64(row + ROW_COUNTERS + 8 * move.counter) + records)


cdef inline void begin_move(uint8_t *row) noexcept nogil:
    """Mark the redo record valid, before the stores to the state words."""
    store32(row + ROW_REDO, 1)
    store64(row + ROW_VERSION, load64(row + ROW_VERSION) | 1)


cdef inline void finish_move(uint8_t *row, MoveRef *move) noexcept nogil:
    """Raise the counter and mark the redo record void."""
    store64(row + ROW_COUNTERS + 8 * move.counter, load64(row + ROW_REDO + REDO_PAIRS + 8))
    store64(row + ROW_VERSION, load64(row + ROW_VERSION) + 1)
    store32(row + ROW_REDO, 0)
