"""Count the outcomes of stream clients' messages: see `kernels/pure/outcomes.py`."""

from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.kernels.pure import outcomes as pure
from bruce_mp.kernels.pure.outcomes import CountedPosition, OutcomeCounts


cdef enum:
    SOURCE_MASK = 0xFFFFF

assert SOURCE_MASK == pure._SOURCE_MASK


cdef bint is_run_settled(uint8_t *run, uint8_t *end) noexcept nogil:
    """Return True if a run that ends at `end` is settled and its records are valid."""
    cdef uint8_t *at = run + body_offset(run)
    cdef uint8_t state = load8(run)
    cdef RecordFields fields
    cdef uint32_t _
    if not is_settled_state(state) and state != SPLIT:
        return False
    for _ in range(load32(run + RUN_COUNT)):
        if read_record(at, end, &fields) or (state == SPLIT and not is_settled_state(load8(at))):
            return False
        at = fields.next
    return True


cdef int count_run(dict counts, uint8_t *run, uint8_t *end) except -1:
    """Add the outcomes of a settled run to `counts`, with one update for consecutive records of equal outcome."""
    cdef uint8_t *at = run + body_offset(run)
    cdef uint8_t state = load8(run), reason = load8(run + RUN_REASON)
    cdef bint is_split = state == SPLIT
    cdef uint64_t outcome, last_outcome = 0, count = 0     # an outcome: flush group, state, reason as one number
    cdef RecordFields fields
    cdef uint32_t _
    for _ in range(load32(run + RUN_COUNT)):
        read_record(at, end, &fields)
        if is_split:
            state, reason = load8(at), load8(at + RECORD_REASON)
        outcome = (load64(at + RECORD_ARRIVAL) & SOURCE_MASK) << 16 | <uint64_t>state << 8 | reason
        if count and outcome != last_outcome:
            add_count(counts, last_outcome, count)
            count = 0
        last_outcome = outcome
        count += 1
        at = fields.next
    if count:
        add_count(counts, last_outcome, count)
    return 0


cdef int add_count(dict counts, uint64_t outcome, uint64_t count) except -1:
    key = (outcome >> 16, outcome >> 8 & 0xFF, outcome & 0xFF)
    counts[key] = counts.get(key, 0) + count
    return 0


def count_outcomes(slab, uint64_t chunk, position):
    cdef Memory memory
    cdef uint8_t *base
    cdef uint8_t *run
    cdef uint8_t *limit
    cdef uint64_t number, at, size
    cdef dict counts = {}
    number, at = position
    attach(slab, &memory)
    try:
        if chunk >= memory.chunk_count:
            raise ValueError(f"There is no chunk {chunk}.")
        base = memory.chunks + chunk * CHUNK_BYTES
        limit = base + <uint64_t>load32(base + CHUNK_SPAN) * CHUNK_BYTES
        if limit > memory.chunks + memory.chunk_count * CHUNK_BYTES:
            return OutcomeCounts(CountedPosition(number, at), counts)
        while number < load32(base + CHUNK_RUNS):
            run = base + at
            if run + RUN_HEADER > limit or load32(run + RUN_MAGIC_AT) != RUN_MAGIC:
                break
            size = load32(run + RUN_SIZE)
            if size < RUN_HEADER or size & 7 or size > <uint64_t>(limit - run) or not is_run_settled(run, run + size):
                break
            count_run(counts, run, run + size)
            at += size
            number += 1
        return OutcomeCounts(CountedPosition(number, at), counts)
    finally:
        release(&memory)
