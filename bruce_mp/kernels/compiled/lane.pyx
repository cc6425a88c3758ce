"""A lane: see `kernels/pure/lane.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.named_tuple cimport named_tuple
from bruce_mp.kernels.compiled.parse cimport NONE, ParsedMessage

from bruce_mp.slab.runs import Segment


cdef class Lane:
    """See `kernels.pure.lane.Lane`."""

    def __init__(self, slab, header):
        self.slab = slab
        self.header = header
        self.chunk = -1
        self.span = 1

    @property
    def header(self):
        return self._header

    @header.setter
    def header(self, header):
        self._header = header
        self.name = header.name
        self.topic, self.flags, self.header_size = header.topic, header.flags, header.size
        self.partition_index, self.partition_count = header.partition_index, header.partition_count

    @property
    def window(self):
        return self._window

    @window.setter
    def window(self, window):
        self._window, self.has_window = window, window is not None
        if window is not None:
            self.limits.before_ms, self.limits.is_clamp = window.before_ms, window.is_clamp
            self.limits.width_ms = window.before_ms + window.after_ms

    def use_chunk(self, int64_t chunk, int64_t span):
        cdef Memory memory
        self.slab.chunk_at(chunk)  # raises SlabError for a chunk that does not exist
        attach(self.slab, &memory)
        self.use_span(&memory, chunk, span)
        release(&memory)

    cdef void use_span(self, Memory *memory, int64_t chunk, int64_t span) noexcept:
        """See `use_chunk`, in the attached memory of the slab."""
        cdef uint8_t *start = memory.chunks + chunk * CHUNK_BYTES
        self.chunk, self.span = chunk, span
        self.start = start - <uint8_t *>memory.buffer.buf
        self.generation = load32(start + CHUNK_GENERATION)
        self.end = self.start + CHUNK_HEADER
        self.limit = self.start + span * CHUNK_BYTES
        self.runs = 0

    def adopt_chunk(self, Lane donor):
        self.chunk, self.span, self.runs = donor.chunk, donor.span, donor.runs
        self.start, self.generation = donor.start, donor.generation
        self.end, self.limit = donor.end, donor.limit
        donor.chunk = -1

    def has_room_for_run(self, uint64_t size):
        return self.chunk >= 0 and self.end + size <= self.limit

    def close_run(self, tickets):
        tickets.hand_over(self.run_at)
        return self.reset_run()

    cdef object hand_over(self, uint8_t *base, uint64_t last_ticket_at):
        """Close the open run with the stores of `HandoverTickets.hand_over`; return the run's segment.

        `last_ticket_at` is the file offset of the row's field with the last ticket.
        """
        cdef uint64_t ticket = load64(base + last_ticket_at) + <uint64_t>self.records
        store64(base + self.run_at + RUN_TICKET, ticket)
        store32(base + self.run_at, FILLED)
        store64(base + last_ticket_at, ticket)
        return self.reset_run()

    cdef object reset_run(self):
        """Mark the open run as closed in the lane, and return the run's segment."""
        cdef uint64_t run = self.run_at - self.start
        segment = named_tuple(
            Segment, (self.chunk, self.generation, run, run + self.header_size, self.records, self.payload)
        )
        self.records = self.due_ms = 0
        return segment

    cdef bint has_room(self, uint64_t size) noexcept:
        """Return True if the lane's chunk has room for a record in the open run, or in a new run if none is open."""
        if self.chunk < 0:
            return False
        return self.end + size + (0 if self.records else self.header_size) <= self.limit

    cdef int append(self, uint8_t *base, ParsedMessage *messages, int first, int64_t now_ms) noexcept:
        """Append the chain of messages that begins with index `first` while they fit.

        Return the index of the first message that does not fit; NONE if all fit.  The message `first` must fit.
        """
        cdef uint64_t size
        cdef uint64_t last_arrival = 0
        cdef int index = first
        cdef ParsedMessage *message
        if not self.records:
            self.open_run(base, &messages[first], now_ms)
        while index != NONE:
            message = &messages[index]
            size = record_size(message)
            if self.end + size > self.limit:
                break
            self.put_record(base + self.end, message)
            self.end += size
            self.records += 1
            last_arrival = message.arrival
            index = message.next
        store64(base + self.start + CHUNK_LAST_ARRIVAL, last_arrival)
        store32(base + self.run_at + RUN_PAYLOAD, <uint32_t>self.payload)
        store32(base + self.run_at + RUN_LARGEST, self.largest_payload)
        store64(base + self.run_at + RUN_MIN_TIMESTAMP, <uint64_t>self.min_timestamp)
        # The count and the size of the run in one store, which makes the records part of the run.
        store64(base + self.run_at + RUN_COUNT, <uint64_t>self.records | (self.end - self.run_at) << 32)
        return index

    cdef void put_record(self, uint8_t *at, ParsedMessage *message) noexcept:
        """Write a record behind the open run; `append` makes it part of the run later."""
        cdef uint64_t size = payload_of(message)
        cdef uint8_t *body = at + RECORD_HEADER
        cdef uint32_t options = message.options | (OPTION_KEEPS_TIMESTAMP if self.keeps_timestamps else 0)
        store32(at, 0)  # the state word
        # flags, retries (0), reason (0), options: one byte each
        store32(at + RECORD_FLAGS, self.flags | options << 8 * (RECORD_OPTIONS - RECORD_FLAGS))
        store32(at + RECORD_KEY_LENGTH, message.key_size)
        store32(at + RECORD_VALUE_LENGTH, message.value_size)
        store32(at + RECORD_PARTITION_KEY, message.partition_key)
        store32(at + RECORD_PARTITION, <uint32_t>-1)
        store32(at + RECORD_SEQUENCE, <uint32_t>-1)
        store32(at + RECORD_EPOCH, 0xFFFF | message.headers_size << 16)  # epoch -1, then RECORD_HEADERS_LENGTH
        store64(at + RECORD_TIMESTAMP, <uint64_t>message.timestamp)
        store64(at + RECORD_ARRIVAL, message.arrival)
        memcpy(body, message.key, message.key_size)
        memcpy(body + message.key_size, message.value, message.value_size)
        memcpy(body + message.key_size + message.value_size, message.headers, message.headers_size)
        memset(body + size, 0, <uint64_t>-<int64_t>size & 7)  # padding to 8 bytes
        self.payload += size
        self.largest_payload = <uint32_t>size if size > self.largest_payload else self.largest_payload
        if message.timestamp < self.min_timestamp:
            self.min_timestamp = message.timestamp

    cdef void open_run(self, uint8_t *base, ParsedMessage *message, int64_t now_ms) noexcept:
        """Write the header of a run without records; its first record will be `message`."""
        cdef uint8_t *at = base + self.end
        memset(at, 0, self.header_size)
        store32(at + RUN_GENERATION, self.generation)
        store32(at + RUN_SIZE, self.header_size)
        store32(at + RUN_TOPIC, self.topic)
        store32(at + RUN_PARTITION, <uint32_t>-1)
        store32(at + RUN_SEQUENCE, <uint32_t>-1)
        store16(at + RUN_EPOCH, 0xFFFF)
        store8(at + RUN_FLAGS, <uint8_t>self.flags)
        store64(at + RUN_ARRIVED_MS, <uint64_t>now_ms)
        store32(at + RUN_PARTITION_INDEX, <uint32_t>self.partition_index)
        store32(at + RUN_PARTITION_COUNT, self.partition_count)
        store16(at + RUN_NAME_LENGTH, <uint16_t>PyBytes_GET_SIZE(self.name))
        store32(at + RUN_MAGIC_AT, RUN_MAGIC)
        store64(at + RUN_FIRST_ARRIVAL, message.arrival)
        store64(at + RUN_MIN_TIMESTAMP, <uint64_t>message.timestamp)
        memcpy(at + RUN_HEADER, PyBytes_AS_STRING(self.name), PyBytes_GET_SIZE(self.name))
        self.run_at = self.end
        self.end += self.header_size
        self.payload = self.largest_payload = 0
        self.min_timestamp = message.timestamp
        self.runs += 1
        store32(base + self.start + CHUNK_RUNS, <uint32_t>self.runs)
