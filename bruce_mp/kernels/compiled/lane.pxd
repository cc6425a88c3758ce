# A lane, and the sizes of its records.  `base` is the address of the slab.

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.parse cimport ParsedMessage
from bruce_mp.kernels.compiled.timestamps cimport Window


cdef inline uint64_t payload_of(ParsedMessage *message) noexcept nogil:
    return <uint64_t>message.key_size + message.value_size + message.headers_size


cdef inline uint64_t record_size(ParsedMessage *message) noexcept nogil:
    return (RECORD_HEADER + payload_of(message) + 7) & <uint64_t>~7


cdef class Lane:
    cdef object slab, _header
    cdef bytes name
    cdef public int64_t chunk, span, runs, records, due_ms, used_ms
    cdef public bint keeps_timestamps
    cdef object _window
    cdef bint has_window
    cdef Window limits       # of timestamps; set only if `has_window`
    cdef int64_t linger_ms   # linger of the lane's runs; 0 = none, or not yet known
    # File offsets, in this order: start of the chunk, start and end of its last run, end of the span.
    cdef uint64_t start, run_at, end, limit
    cdef uint64_t payload    # of the open run
    cdef uint32_t generation, topic, flags, header_size, partition_count, largest_payload
    cdef int partition_index
    cdef int64_t min_timestamp

    cdef void use_span(self, Memory *memory, int64_t chunk, int64_t span) noexcept
    cdef object hand_over(self, uint8_t *base, uint64_t last_ticket_at)
    cdef object reset_run(self)
    cdef bint has_room(self, uint64_t size) noexcept
    cdef int append(self, uint8_t *base, ParsedMessage *messages, int first, int64_t now_ms) noexcept
    cdef void put_record(self, uint8_t *at, ParsedMessage *message) noexcept
    cdef void open_run(self, uint8_t *base, ParsedMessage *message, int64_t now_ms) noexcept
