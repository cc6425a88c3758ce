"""State words, partitions and sequence numbers of segments, and their splits: see `kernels/pure/segments.py`."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.named_tuple cimport named_tuple
from bruce_mp.kernels.compiled.redo cimport *

from bruce_mp.errors import SlabError
from bruce_mp.slab import rows, runs
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.runs import Segment


cdef enum:
    FIRST_UNKNOWN_STATE = SPLIT + 1
    NO_SEQUENCE = -1


cdef object raise_damaged(object slab, object segment):
    """Raise the error of the pure kernels for a segment that disagrees with the headers of its chunk and run."""
    # One of the two pure functions should raise.
    runs.segment_words(slab, segment)
    for _ in runs.segment_records(slab, segment):
        pass
    raise SlabError(f"The records of a run of chunk {segment[0]} are damaged.")


cdef object damage_of(object slab, object segment):
    """Return the error that `raise_damaged` raises."""
    try:
        raise_damaged(slab, segment)
    except SlabError as error:
        return error


cdef inline bint is_split(Bounds *bounds) noexcept nogil:
    return load8(bounds.run) == SPLIT


cdef int find_state_words(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil:
    """Locate a segment and its state words.

    Return 0 if the segment is valid, and is either a whole run or records of a SPLIT run; otherwise return -1.
    """
    if find_bounds(memory, ref, bounds):
        return -1
    if is_split(bounds):
        return check_records(bounds, ref.records)
    return 0 if bounds.is_whole else -1


cdef bint has_state(Bounds *bounds, uint64_t records, uint32_t expected) noexcept nogil:
    """Return True if all state words of a segment are `expected`."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    if not is_split(bounds):
        return load32(bounds.run) == expected
    for _ in range(records):
        if load32(at) != expected or read_record(at, bounds.end, &fields):
            return False
        at = fields.next
    return True


cdef void store_state(Bounds *bounds, uint64_t records, uint32_t state_word) noexcept nogil:
    """Store `state_word` in all state words of a segment."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    if not is_split(bounds):
        store32(bounds.run, state_word)
        return
    for _ in range(records):
        if read_record(at, bounds.end, &fields):
            return
        store32(at, state_word)
        at = fields.next


cdef int locate_matching(Memory *memory, object segment, uint32_t expected, LocatedSegment *found) except -2:
    """Locate a segment.

    Return 0 if its state words are all `expected` and its generation is still that of the chunk, otherwise -1.
    """
    read_segment(segment, &found.ref)
    if find_state_words(memory, &found.ref, &found.bounds) or not has_state(&found.bounds, found.ref.records, expected):
        return -1
    # Read the generation after the words.  If it is the segment's, the words are those of the segment, and stay so:
    # the input cannot reuse the chunk while this process holds records in it.
    return 0 if load32(found.bounds.base + CHUNK_GENERATION) == found.ref.generation else -1


def claim(slab, segments, uint32_t expected, uint32_t state_word):
    cdef Memory memory
    cdef LocatedSegment found
    cdef list claimed = []
    attach(slab, &memory)
    try:
        for segment in segments:
            if not locate_matching(&memory, segment, expected, &found):
                store_state(&found.bounds, found.ref.records, state_word)
                claimed.append(segment)
    finally:
        release(&memory)
    return claimed


def claim_runs(slab, segments, uint32_t expected, uint32_t state_word):
    cdef Memory memory
    cdef LocatedSegment found
    cdef uint8_t *run
    cdef uint8_t *placement_at
    cdef list claimed = [], errors = []
    attach(slab, &memory)
    try:
        for segment in segments:
            if locate_matching(&memory, segment, expected, &found):
                continue
            store_state(&found.bounds, found.ref.records, state_word)
            if not is_valid_run(&memory, &found.ref, &found.bounds):
                errors.append(damage_of(slab, segment))
                continue
            run = found.bounds.run
            placement_at = found.bounds.first + RECORD_PARTITION if is_split(&found.bounds) else run + RUN_PARTITION
            claimed.append((
                segment, load32(run + RUN_TOPIC), <int>load32(placement_at), load8(run + RUN_FLAGS) & FLAG_PARTITION_KEY,
                found.ref.records, found.ref.payload, load64(run + RUN_ARRIVED_MS),
            ))
    finally:
        release(&memory)
    return claimed, errors


cdef void move_located(uint8_t *row, MoveRef *move, LocatedSegment *moved, uint64_t count) noexcept nogil:
    """Move `count` segments and raise the counter in one transaction: see `slab.rows.ProcessRow.move`."""
    cdef uint64_t index, records = 0
    for index in range(count):
        records += moved[index].ref.records
    write_redo(row, move.after, move.before, 1, count, 0, 0)
    write_pair(row, 0, move.counter, records)
    for index in range(count):
        write_segment(row, index, &moved[index].ref)
    store32(row + ROW_REDO, 1)  # the redo record is valid
    make_version_odd(row)
    for index in range(count):
        store_state(&moved[index].bounds, moved[index].ref.records, move.after)
    store64(counter_at(row, move.counter), load64(row + ROW_REDO + REDO_PAIRS + 8))
    make_version_even(row)
    store32(row + ROW_REDO, 0)


def pack_segments(segments):
    cdef SegmentRef ref
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, len(segments) * SEGMENT)
    cdef uint32_t *at = <uint32_t *>PyBytes_AsString(packed)
    for segment in segments:
        read_segment(segment, &ref)
        if (ref.chunk | ref.generation | ref.run | ref.first | ref.records | ref.payload) >> 32:
            return runs.pack_segments(segments)  # raises an error
        at[0], at[1], at[2] = <uint32_t>ref.chunk, <uint32_t>ref.generation, <uint32_t>ref.run
        at[3], at[4], at[5] = <uint32_t>ref.first, <uint32_t>ref.records, <uint32_t>ref.payload
        at += SEGMENT // sizeof(uint32_t)
    return packed


# --- placement -------------------------------------------------------------------------------------------------------
cdef inline int64_t next_sequence(int64_t sequence, uint64_t count) noexcept nogil:
    return (sequence + <int64_t>count) & 0x7FFFFFFF if sequence >= 0 else sequence


cdef inline void store_placement(uint8_t *at, int partition, int64_t sequence, int epoch) noexcept nogil:
    """Store partition, sequence number and epoch, which are neighboring fields in the header of a run or record."""
    store32(at, <uint32_t>partition)
    store32(at + 4, <uint32_t><int>sequence)
    store16(at + 8, <uint16_t>epoch)


cdef void write_placement(
    Bounds *bounds, uint64_t records, int partition, int64_t sequence, int epoch, int flag
) noexcept nogil:
    """See `slab.runs.write_placement`; `flag` is FLAG_BATCH_START if the first record begins a batch, otherwise 0."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    if not is_split(bounds):
        store_placement(bounds.run + RUN_PARTITION, partition, sequence, epoch)
        store8(bounds.run + RUN_FLAGS, load8(bounds.run + RUN_FLAGS) & (FLAG_PARTITION_KEY | FLAG_IN_DOUBT) | flag)
        return
    for _ in range(records):
        if read_record(at, bounds.end, &fields):
            return
        store_placement(at + RECORD_PARTITION, partition, sequence, epoch)
        store8(at + RECORD_FLAGS, load8(at + RECORD_FLAGS) & (FLAG_PARTITION_KEY | FLAG_IN_DOUBT) | flag)
        sequence, flag, at = next_sequence(sequence, 1), 0, fields.next


def write_sequence(slab, segments, int partition, int64_t sequence, int epoch, *, bint opens_batch):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef int flag = FLAG_BATCH_START if opens_batch else 0
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &ref)
            if find_state_words(&memory, &ref, &bounds):
                return raise_damaged(slab, segment)
            write_placement(&bounds, ref.records, partition, sequence, epoch, flag)
            sequence, flag = next_sequence(sequence, ref.records), 0
    finally:
        release(&memory)


def bind_partition(slab, segments, partitions):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    attach(slab, &memory)
    try:
        for segment, partition in zip(segments, partitions, strict=True):
            read_segment(segment, &ref)
            if find_state_words(&memory, &ref, &bounds):
                return raise_damaged(slab, segment)
            write_placement(&bounds, ref.records, partition, NO_SEQUENCE, NO_SEQUENCE, 0)
    finally:
        release(&memory)


cdef object assign_one(
    Memory *memory, uint64_t entry_at, topic, partition, tuple segments, uint64_t row_at, MoveRef *move,
    bint is_numbered,
):
    cdef uint64_t segment_count = len(segments)
    cdef uint8_t *row = <uint8_t *>memory.buffer.buf + row_at
    cdef uint8_t *next_sequence_at = <uint8_t *>memory.buffer.buf + entry_at + PARTITION_NEXT_SEQUENCE
    cdef int64_t base_sequence = <int32_t>load32(next_sequence_at), sequence
    cdef int epoch = <int32_t>load32(next_sequence_at + 4)  # the next field of the entry
    cdef int partition_index = partition, flag = FLAG_BATCH_START
    cdef uint64_t index
    cdef LocatedSegment only
    cdef LocatedSegment *located = &only
    if segment_count > 1:
        located = <LocatedSegment *>malloc(segment_count * sizeof(LocatedSegment))
    if located == NULL:
        raise MemoryError
    if not is_numbered or epoch >= LAST_EPOCH:
        base_sequence = epoch = NO_SEQUENCE
    sequence = base_sequence
    try:
        if segment_count > 1 and segment_count > rows.MAX_SETTLED_SEGMENTS:
            raise SlabError("A batch has more segments than a transaction.")
        for index in range(segment_count):
            if locate_matching(memory, segments[index], move.before, &located[index]):
                return None
        for index in range(segment_count):
            write_placement(&located[index].bounds, located[index].ref.records, partition_index, sequence, epoch, flag)
            sequence, flag = next_sequence(sequence, located[index].ref.records), 0
        move_located(row, move, located, segment_count)
        if base_sequence >= 0:
            store64(next_sequence_at, <uint64_t>sequence | <uint64_t>epoch << 32)  # both fields in one store
        return named_tuple(BuiltBatch, (topic, partition, epoch, base_sequence, segments))
    finally:
        if segment_count > 1:
            free(located)


def assign_sequences(slab, process_row, batches, move, *, bint is_numbered):
    cdef Memory memory
    cdef MoveRef move_ref
    cdef uint64_t entry_at, row_at = process_row._at
    cdef list built = []
    read_move(move, &move_ref)
    attach(slab, &memory)
    try:
        for entry_at, topic, partition, segments in batches:
            if entry_at & 7 or entry_at + PARTITION_ENTRY > <uint64_t>memory.buffer.len:
                raise ValueError("The slab has no such entry.")
            listed = tuple(segments)
            built.append(assign_one(&memory, entry_at, topic, partition, listed, row_at, &move_ref, is_numbered))
        return built
    finally:
        release(&memory)


# --- settling --------------------------------------------------------------------------------------------------------
cdef bint any_unsettled(Bounds *bounds, uint64_t records) noexcept nogil:
    """Return True if a segment has an unsettled record, and no damaged record before that one."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    if not is_split(bounds):
        return not is_settled_state(load8(bounds.run))
    for _ in range(records):
        if not is_settled_state(load8(at)):
            return True
        if read_record(at, bounds.end, &fields):
            return False
        at = fields.next
    return False


cdef inline void settle_state(uint8_t *state_at, uint8_t *reason_at, uint32_t outcome, uint8_t reason) noexcept nogil:
    """Store the outcome and the reason in one state word and reason field, unless the word is settled already."""
    if is_settled_state(load8(state_at)):
        return
    if reason:
        store8(reason_at, reason)
    store32(state_at, outcome)


cdef void settle_segment(Bounds *bounds, uint64_t records, uint32_t outcome, uint8_t reason) noexcept nogil:
    """Settle those records of a segment that are not settled yet, up to a damaged record."""
    cdef RecordFields fields
    cdef uint8_t *at = bounds.first
    cdef uint64_t _
    if not is_split(bounds):
        settle_state(bounds.run, bounds.run + RUN_REASON, outcome, reason)
        return
    for _ in range(records):
        if read_record(at, bounds.end, &fields):
            return
        settle_state(at, at + RECORD_REASON, outcome, reason)
        at = fields.next


# --- splits ----------------------------------------------------------------------------------------------------------
cdef bint is_valid_run(Memory *memory, SegmentRef *ref, Bounds *bounds) noexcept nogil:
    """Return True if the header of a segment's run is valid: see `slab.runs.read_run`."""
    cdef uint8_t *limit = span_end(memory, ref.chunk)
    cdef uint64_t size = load32(bounds.run + RUN_SIZE)
    cdef uint64_t body = body_offset(bounds.run)
    if limit == NULL or load8(bounds.run) >= FIRST_UNKNOWN_STATE or size & 7 or size > <uint64_t>(limit - bounds.run):
        return False
    return size >= body and <uint64_t>load32(bounds.run + RUN_COUNT) * RECORD_HEADER <= size - body


cdef int split_run(Memory *memory, SegmentRef *ref) noexcept nogil:
    """Make a segment's run SPLIT: see `slab.runs.split_run`.  Return 0, or -1 for a damaged run."""
    cdef Bounds whole
    cdef RecordFields fields
    if find_bounds(memory, ref, &whole) or not is_valid_run(memory, ref, &whole):
        return -1
    whole.first = whole.run + body_offset(whole.run)
    if check_records(&whole, load32(whole.run + RUN_COUNT)):
        return -1
    if is_split(&whole):
        return 0
    cdef uint32_t state_word = load32(whole.run)
    # Of the run's flags, the first record gets only these; the other records get none.
    cdef int flags = load8(whole.run + RUN_FLAGS) & (FLAG_BATCH_START | FLAG_IN_DOUBT | FLAG_AFTER_GAP)
    cdef uint8_t retries = load8(whole.run + RUN_RETRIES)
    cdef int partition = <int>load32(whole.run + RUN_PARTITION)
    cdef int64_t sequence = <int>load32(whole.run + RUN_SEQUENCE)
    cdef uint16_t epoch = load16(whole.run + RUN_EPOCH)
    cdef uint8_t *at = whole.first
    cdef uint64_t _
    for _ in range(load32(whole.run + RUN_COUNT)):
        if read_record(at, whole.end, &fields):
            return -1
        store32(at, state_word)
        store8(at + RECORD_FLAGS, load8(at + RECORD_FLAGS) & FLAG_PARTITION_KEY | flags)
        store8(at + RECORD_RETRIES, retries)
        store_placement(at + RECORD_PARTITION, partition, sequence, epoch)
        sequence, flags, at = next_sequence(sequence, 1), 0, fields.next
    store32(whole.run, SPLIT)
    return 0


cdef inline object part_of(SegmentRef *ref, uint64_t first, uint64_t records, uint64_t payload):
    """Return the part of a segment that has `records` records, the first at offset `first` of the chunk."""
    return named_tuple(Segment, (ref.chunk, ref.generation, ref.run, first, records, payload))


def split_at(slab, segment, uint64_t max_records, int64_t max_payload):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef RecordFields fields
    cdef int64_t left = max_payload
    cdef uint64_t head_records = 0, head_payload = 0, payload = 0, index
    cdef uint8_t *at
    cdef uint8_t *rest_at
    attach(slab, &memory)
    try:
        read_segment(segment, &ref)
        if find_bounds(&memory, &ref, &bounds) or check_records(&bounds, ref.records):
            return raise_damaged(slab, segment)
        at = rest_at = bounds.first
        for index in range(ref.records):
            read_record(at, bounds.end, &fields)
            left -= <int64_t>fields.payload
            payload += fields.payload
            at = fields.next
            # If `head_records == index`, all records before this one are in the head.
            if head_records == index and head_records < max_records and left >= 0:
                head_records, head_payload, rest_at = index + 1, payload, at
        if head_records == 0:
            return None, segment
        if head_records == ref.records:
            return segment, None
        if split_run(&memory, &ref):
            return raise_damaged(slab, segment)
        rest = part_of(&ref, rest_at - bounds.base, ref.records - head_records, payload - head_payload)
        return part_of(&ref, ref.first, head_records, head_payload), rest
    finally:
        release(&memory)


cdef list split_by_label(
    slab, segment, Memory *memory, SegmentRef *ref, Bounds *bounds, labels, bint by_key, uint64_t limit
):
    """Split a segment where the label of its records changes; return a (label, segment) per part, in order.

    The label of a record is `labels[key % len(labels)]` if `by_key` is set, otherwise `labels[payload <= limit]`.
    """
    cdef RecordFields fields
    cdef uint64_t count = len(labels), index, position, last_position = 0, records = 0, payload = 0
    cdef uint8_t *at = bounds.first
    cdef uint8_t *start = bounds.first
    cdef list parts = []
    if check_records(bounds, ref.records):
        return raise_damaged(slab, segment)
    for index in range(ref.records):
        read_record(at, bounds.end, &fields)
        position = load32(at + RECORD_PARTITION_KEY) % count if by_key else fields.payload <= limit
        if records and position != last_position and labels[position] != labels[last_position]:
            parts.append((labels[last_position], part_of(ref, start - bounds.base, records, payload)))
            start, records, payload = at, 0, 0
        last_position = position
        records += 1
        payload += fields.payload
        at = fields.next
    if not parts:
        return [(labels[last_position], segment)]
    if split_run(memory, ref):
        return raise_damaged(slab, segment)
    parts.append((labels[last_position], part_of(ref, start - bounds.base, records, payload)))
    return parts


def split_by_partition(slab, segment, partitions):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    cdef uint64_t count = len(partitions), index
    attach(slab, &memory)
    try:
        read_segment(segment, &ref)
        if find_bounds(&memory, &ref, &bounds) or not is_valid_run(&memory, &ref, &bounds):
            return raise_damaged(slab, segment)
        # The conversion makes an index of -1, which stands for none, larger than any count.
        index = <uint64_t><int64_t><int>load32(bounds.run + RUN_PARTITION_INDEX)
        if load32(bounds.run + RUN_PARTITION_COUNT) == count and index < count:
            return [(partitions[index], segment)]
        return split_by_label(slab, segment, &memory, &ref, &bounds, partitions, True, 0)
    finally:
        release(&memory)


def split_by_size(slab, segment, uint64_t limit):
    cdef Memory memory
    cdef SegmentRef ref
    cdef Bounds bounds
    attach(slab, &memory)
    try:
        read_segment(segment, &ref)
        if find_bounds(&memory, &ref, &bounds):
            return raise_damaged(slab, segment)
        return split_by_label(slab, segment, &memory, &ref, &bounds, (False, True), False, limit)
    finally:
        release(&memory)
