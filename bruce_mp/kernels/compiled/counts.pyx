"""Count the records of chunks: see `kernels/pure/counts.py`."""

from libc.string cimport memset

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport is_valid_run

from bruce_mp.kernels.pure import counts as pure
from bruce_mp.kernels.pure.counts import CountedPosition, OutcomeCounts
from bruce_mp.slab import chunk_readers


cdef enum:
    SOURCE_MASK = 0xFFFFF
    STATES = SPLIT + 1   # number of run states
    READ_TRIES = 3

assert (SOURCE_MASK, READ_TRIES) == (pure._SOURCE_MASK, chunk_readers.READ_TRIES)


cdef bint is_run_settled(uint8_t *run, uint8_t *end) noexcept nogil:
    """Return True if the run from `run` to `end` is settled and its records are valid."""
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
    return at <= end  # not so for a damaged header of a run without records


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


cdef void add_run(uint8_t *run, uint64_t *counts) noexcept nogil:
    """Add the records of a valid run to `counts`, by state; stop at a damaged record, and add it as SPLIT."""
    cdef RecordFields fields
    cdef uint8_t state = load8(run)
    cdef uint8_t *at = run + body_offset(run)
    cdef uint8_t *end = run + load32(run + RUN_SIZE)
    cdef uint64_t _
    if state != SPLIT and state != OPEN:
        counts[state] += load32(run + RUN_COUNT)
        return
    for _ in range(load32(run + RUN_COUNT)):
        if read_record(at, end, &fields):
            counts[<int>SPLIT] += 1
            return
        counts[load8(at) if state == SPLIT else state] += 1
        at = fields.next


cdef int add_runs(Memory *memory, uint64_t chunk, uint64_t *counts) noexcept nogil:
    """Add the records of a chunk to `counts`; return -1 at a damaged header, because the next run cannot be found."""
    cdef uint8_t *limit = span_end(memory, chunk)
    cdef uint8_t *base = memory.chunks + chunk * CHUNK_BYTES
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef uint64_t _
    if limit == NULL:
        return -1
    ref.chunk = chunk
    bounds.run = base + CHUNK_HEADER
    for _ in range(load32(base + CHUNK_RUNS)):
        if bounds.run + RUN_HEADER > limit or load32(bounds.run + RUN_MAGIC_AT) != RUN_MAGIC:
            return -1
        if load32(bounds.run + RUN_GENERATION) != load32(base + CHUNK_GENERATION):
            return -1
        if not is_valid_run(memory, &ref, &bounds):
            return -1
        add_run(bounds.run, counts)
        bounds.run += load32(bounds.run + RUN_SIZE)
    return 0


cdef void add_chunk(Memory *memory, uint64_t chunk, uint32_t generation, uint64_t *totals) noexcept nogil:
    """Add the records of a chunk to `totals`.

    If the owner reopens the chunk during the count, count again: see `slab.chunk_readers.read_stable`.
    """
    cdef uint64_t counts[STATES]
    cdef uint8_t *base = memory.chunks + chunk * CHUNK_BYTES
    cdef uint32_t before, has_runs
    cdef int state, _
    for _ in range(READ_TRIES):
        memset(counts, 0, sizeof(counts))
        if add_runs(memory, chunk, counts):
            counts[<int>SPLIT] += 1
        has_runs = load32(base + CHUNK_RUNS)  # 0: the chunk was released, so other data may overwrite its records
        before, generation = generation, load32(base + CHUNK_GENERATION)
        if generation == before:
            for state in range(STATES if has_runs else 0):
                totals[state] += counts[state]
            return


def count_states(slab, spans):
    cdef Memory memory
    cdef uint64_t totals[STATES]
    cdef uint64_t chunk
    cdef uint32_t generation
    cdef int state
    memset(totals, 0, sizeof(totals))
    attach(slab, &memory)
    try:
        for chunk, generation in spans:
            if chunk >= memory.chunk_count:
                raise ValueError(f"There is no chunk {chunk}.")
            add_chunk(&memory, chunk, generation, totals)
    finally:
        release(&memory)
    return [totals[state] for state in range(STATES)]
