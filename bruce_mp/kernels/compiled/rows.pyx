"""Transactions of a process row: see `slab/rows.py`; its `ProcessRow` is the base class.

The redo record and the order of stores are those of `slab/rows.py`, so each variant can complete the transactions of
the other.
"""

from libc.stdlib cimport free, malloc

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.redo cimport *
from bruce_mp.kernels.compiled.segments cimport (
    LocatedSegment, any_unsettled, find_state_words, locate_matching, move_located, raise_damaged, settle_segment,
)

from bruce_mp.errors import SlabError
from bruce_mp.slab import rows
from bruce_mp.slab.rows import ProcessRow as PureRow


cdef enum:
    LANDING_EMPTY = 0xFFFFFFFF

assert (rows._REDO.size, rows._SEGMENTS_AT, rows.SEGMENT.size) == (REDO_PAIRS, SEGMENTS_AT, SEGMENT)
assert (rows._PAIR.size, rows._MAX_COUNTERS) == (PAIR, MAX_COUNTERS)


cdef void settle_all(Memory *memory, SegmentRef *refs, uint64_t count, uint32_t outcome, uint8_t reason) noexcept nogil:
    """Store the outcome of `count` segments: see `slab.rows.settle_words`."""
    cdef Bounds bounds
    cdef uint64_t index
    for index in range(count):
        if find_state_words(memory, &refs[index], &bounds) or not any_unsettled(&bounds, refs[index].records):
            continue
        # Read the generation after the words.  If it is the segment's, the words are those of the segment, and stay so:
        # the input cannot reuse the chunk while a record is unsettled.
        if load32(bounds.base + CHUNK_GENERATION) == refs[index].generation:
            settle_segment(&bounds, refs[index].records, outcome, reason)


cdef int read_segments(slab, segments, Memory *memory, SegmentRef *refs) except -1:
    """Convert segments to `refs`.  Raises SlabError if one disagrees with the headers of its chunk and run."""
    cdef Bounds bounds
    cdef uint64_t index = 0
    for segment in segments:
        read_segment(segment, &refs[index])
        if find_state_words(memory, &refs[index], &bounds):
            raise_damaged(slab, segment)
        index += 1
    return 0


cdef uint64_t write_pairs(uint8_t *row, dict increments) except? 0:
    """Write the counters with their new values into the redo record; return the number of counters."""
    cdef uint64_t index = 0, counter
    for counter, amount in increments.items():
        if counter >= ROW_COUNTER_CAPACITY:
            raise IndexError(f"There is no counter {counter}.")
        write_pair(row, index, counter, <uint64_t>amount)
        index += 1
    return index


cdef void commit_redo(
    Memory *memory, uint8_t *row, uint8_t *landing, SegmentRef *refs, uint64_t segment_count, uint64_t pair_count,
    uint32_t outcome, uint8_t reason, uint64_t landed,
) noexcept nogil:
    """Mark the redo record valid, apply it, and mark it void; `landed` is the number of landing slots to empty."""
    cdef uint8_t *redo = row + ROW_REDO
    cdef uint8_t *pair = redo + REDO_PAIRS
    cdef uint64_t index
    store32(redo, 1)
    make_version_odd(row)
    settle_all(memory, refs, segment_count, outcome, reason)
    for index in range(pair_count):
        store64(counter_at(row, load64(pair)), load64(pair + 8))
        pair += PAIR
    for index in range(landed):
        store32(landing + LANDING_HEADERS + index * MMSGHDR_BYTES + MMSGHDR_LENGTH, <uint32_t>LANDING_EMPTY)
    if landed:
        store64(landing + LANDING_BASE_ARRIVAL, load64(redo + REDO_BASE))
    elif load64(redo + REDO_BASE):
        store64(row + ROW_COUNTED, load64(redo + REDO_BASE))
    make_version_even(row)
    store32(redo, 0)


cdef void commit_landed_batch(
    Memory *memory, uint8_t *row, uint8_t *landing, uint64_t *counters, uint64_t *amounts, uint64_t landed
) noexcept nogil:
    """Commit a batch of `landed` datagrams, all valid and with room: empty their slots, and raise four counters."""
    cdef uint64_t base = load64(landing + LANDING_BASE_ARRIVAL) + landed
    write_redo_without_segments(row, counters, amounts, 4, landed, base)
    commit_redo(memory, row, landing, NULL, 0, 4, DELIVERED, 0, landed)


cdef void commit_counted_batch(
    Memory *memory, uint8_t *row, uint64_t *counters, uint64_t *amounts, int counter_count, uint64_t counted
) noexcept nogil:
    """Raise a stream input's number of counted messages to `counted`, and raise `counter_count` counters."""
    write_redo_without_segments(row, counters, amounts, counter_count, 0, counted)
    commit_redo(memory, row, NULL, NULL, 0, counter_count, DELIVERED, 0, 0)


cdef void write_redo_without_segments(
    uint8_t *row, uint64_t *counters, uint64_t *amounts, int counter_count, uint64_t landed, uint64_t base
) noexcept nogil:
    """Write the redo record of a transaction without segments."""
    cdef int index
    write_redo(row, DELIVERED, 0, counter_count, 0, landed, base)
    for index in range(counter_count):
        write_pair(row, index, counters[index], amounts[index])


class ProcessRow(PureRow):
    """See `slab.rows.ProcessRow`."""

    def move(self, segments, move):
        cdef Memory memory
        cdef MoveRef move_ref
        cdef uint64_t count = 0, max_count = rows.MAX_SETTLED_SEGMENTS, row_at = self._at
        cdef list moved = [], offered = list(segments)
        cdef uint64_t capacity = min(max_count, <uint64_t>len(offered) or 1)
        cdef LocatedSegment *located = <LocatedSegment *>malloc(capacity * sizeof(LocatedSegment))
        cdef uint8_t *row
        if located == NULL:
            raise MemoryError
        try:
            read_move(move, &move_ref)
            attach(self._slab, &memory)
            try:
                row = <uint8_t *>memory.buffer.buf + row_at
                for segment in offered:
                    if count == max_count:
                        move_located(row, &move_ref, located, count)
                        count = 0
                    if not locate_matching(&memory, segment, move_ref.before, &located[count]):
                        moved.append(segment)
                        count += 1
                if count:
                    move_located(row, &move_ref, located, count)
            finally:
                release(&memory)
        finally:
            free(located)
        return moved

    def _transact(self, increments, *, outcome=DELIVERED, reason=0, segments=(), landed=0, base=0):
        cdef Memory memory
        cdef uint64_t count = len(segments), pair_count, index, slots = landed, new_base = base
        cdef uint64_t row_at = self._at, landing_at = self._slab.geometry.landing_at
        cdef SegmentRef *refs = NULL
        cdef uint8_t *row
        cdef uint8_t *landing
        cdef uint32_t settled_state = outcome
        cdef uint8_t discard_reason = reason
        if len(increments) > MAX_COUNTERS:
            raise SlabError(f"One transaction raises at most {MAX_COUNTERS} counters, not {len(increments)}.")
        if slots > self._slab.geometry.landing_slots or count > rows.MAX_SETTLED_SEGMENTS:
            raise SlabError("A transaction is larger than its record.")
        attach(self._slab, &memory)
        try:
            if count:
                refs = <SegmentRef *>malloc(count * sizeof(SegmentRef))
                if refs == NULL:
                    raise MemoryError
                read_segments(self._slab, segments, &memory, refs)
            row = <uint8_t *>memory.buffer.buf + row_at
            write_redo(row, settled_state, discard_reason, len(increments), count, slots, new_base)
            pair_count = write_pairs(row, dict(increments))
            for index in range(count):
                write_segment(row, index, &refs[index])
            landing = <uint8_t *>memory.buffer.buf + landing_at
            with nogil:
                commit_redo(&memory, row, landing, refs, count, pair_count, settled_state, discard_reason, slots)
        finally:
            release(&memory)
            free(refs)
