"""Produce responses in which the broker accepts all batches: see `kernels/pure/acks.py`.

The layout of a response is in `protocol/kafka/produce_response.py`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_AsString, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from bruce_mp.kernels.compiled.key_hashes cimport murmur2
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.wire cimport big16, big32


cdef enum:
    FIRST_VERSION = 9        # the first version with varints
    PARTITION_BYTES = 33     # index, error, base offset, append time, start offset, no errors, no message, no tags
    ERROR_AT = 4
    END_AT = 30
    CORRELATION_ID = 4


cdef struct Batch:           # a batch of the request
    uint8_t *topic
    uint64_t topic_size
    int32_t partition
    bint is_accepted


cdef struct Request:
    Batch *batches
    uint64_t count
    uint32_t *places         # a hash table: numbers of batches + 1, 0 = free
    uint32_t mask            # size of the table - 1


cdef struct Reader:
    uint8_t *at
    uint8_t *end


cdef inline uint32_t place_of(uint8_t *topic, uint64_t topic_size, int32_t partition) noexcept nogil:
    return murmur2(topic, topic_size) + <uint32_t>partition * 0x9E3779B1U


cdef int read_request(list topics, list partitions, Request *request) except -1:
    cdef uint64_t index
    cdef uint32_t place
    cdef Batch *batch
    for index in range(request.count):
        batch = &request.batches[index]
        topic = topics[index]
        batch.topic, batch.topic_size = <uint8_t *>PyBytes_AsString(topic), len(<bytes>topic)
        batch.partition = partitions[index]
        place = place_of(batch.topic, batch.topic_size, batch.partition)
        while request.places[place & request.mask]:
            place += 1
        request.places[place & request.mask] = <uint32_t>index + 1
    return 0


cdef Batch *find_batch(Request *request, uint8_t *topic, uint64_t topic_size, int32_t partition) noexcept nogil:
    """Return the batch for a partition; NULL if the request has none."""
    cdef uint32_t place = place_of(topic, topic_size, partition), number
    cdef Batch *batch
    while True:
        number = request.places[place & request.mask]
        if not number:
            return NULL
        batch = &request.batches[number - 1]
        if batch.partition == partition and batch.topic_size == topic_size and not memcmp(
            batch.topic, topic, topic_size
        ):
            return batch
        place += 1


cdef inline int64_t read_length(Reader *reader) noexcept nogil:
    """Read the length of a string or of an array; return -1 for null and after the end."""
    cdef uint64_t value = 0
    cdef int shift = 0
    while reader.at < reader.end and shift < 35:
        value |= <uint64_t>(reader.at[0] & 0x7F) << shift
        reader.at += 1
        if reader.at[-1] < 0x80:
            return <int64_t>value - 1
        shift += 7
    return -1


cdef inline bint has_no_tags(Reader *reader) noexcept nogil:
    reader.at += 1
    return reader.at <= reader.end and reader.at[-1] == 0


cdef bint accepts_topic(Reader *reader, Request *request) noexcept nogil:
    """Read a topic of the response; return True if all its partitions are accepted."""
    cdef int64_t size = read_length(reader), _
    cdef uint8_t *topic = reader.at
    cdef Batch *batch
    if size < 0 or size > reader.end - reader.at:
        return False
    reader.at += size
    for _ in range(read_length(reader)):
        if reader.end - reader.at < PARTITION_BYTES or big16(reader.at + ERROR_AT):
            return False
        batch = find_batch(request, topic, <uint64_t>size, <int32_t>big32(reader.at))
        if batch == NULL or batch.is_accepted or memcmp(reader.at + END_AT, b"\1\0\0", 3):
            return False
        batch.is_accepted = True
        request.count -= 1
        reader.at += PARTITION_BYTES
    return has_no_tags(reader)


cdef int64_t read_response(Reader *reader, Request *request) noexcept nogil:
    """Return the throttle time; -1 if `decode_produce` must read the response.  `request.count` counts down to 0."""
    cdef int64_t _
    reader.at += CORRELATION_ID
    if not has_no_tags(reader):
        return -1
    for _ in range(read_length(reader)):
        if not accepts_topic(reader, request):
            return -1
    if request.count or reader.end - reader.at < 5 or reader.at[4]:  # tags, perhaps the addresses of leaders
        return -1
    return <int32_t>big32(reader.at)


def read_accepted(bytes frame, int version, list topics, list partitions):
    cdef Request request
    cdef Reader reader
    cdef uint64_t table_size = 2
    cdef int64_t throttle_ms
    request.count = len(topics)
    if version < FIRST_VERSION or request.count != <uint64_t>len(partitions):
        return None
    while table_size < 2 * request.count:
        table_size *= 2
    request.mask = <uint32_t>table_size - 1
    request.batches = <Batch *>calloc(1, request.count * sizeof(Batch) + table_size * sizeof(uint32_t))
    if request.batches == NULL:
        raise MemoryError
    request.places = <uint32_t *>&request.batches[request.count]
    try:
        read_request(topics, partitions, &request)
        reader.at = <uint8_t *>PyBytes_AS_STRING(frame)
        reader.end = reader.at + PyBytes_GET_SIZE(frame)
        throttle_ms = read_response(&reader, &request)
    finally:
        free(request.batches)
    return throttle_ms if throttle_ms >= 0 else None
