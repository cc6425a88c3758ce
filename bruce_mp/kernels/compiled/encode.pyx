"""Encode segments as a Kafka RecordBatch v2: see `kernels/pure/encode.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from bruce_mp.kernels.compiled.frame cimport *
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.wire cimport *

from google_crc32c import extend, value

from bruce_mp.errors import LocalProtocolError
from bruce_mp.kernels.pure.encode import Encoded
from bruce_mp.protocol.kafka.produce_request import COPIED_BYTES, FIRST_FLEXIBLE_VERSION
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER
from bruce_mp.slab import runs


cdef inline uint8_t *put_varint(uint8_t *at, int64_t value) noexcept nogil:
    return put_uvarint(at, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline uint64_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef uint64_t size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t *put_bytes(uint8_t *at, uint8_t *data, uint64_t length, int64_t empty) noexcept nogil:
    """Write a length field and the bytes; `empty` is the content of the field if there are no bytes."""
    at = put_varint(at, <int64_t>length if length else empty)
    memcpy(at, data, length)
    return at + length


cdef inline uint64_t bytes_size(uint64_t length) noexcept nogil:
    """Return the size of bytes and their length field; the field takes one byte for both 0 (empty) and -1 (null)."""
    return length + varint_size(<int64_t>length)


cdef inline uint64_t headers_size(RecordFields *fields) noexcept nogil:
    """Return the size of a record's headers and of their count; 0 for damaged headers."""
    cdef uint8_t *at = fields.headers
    cdef uint8_t *end = at + fields.headers_length
    cdef uint64_t size = 0
    cdef int64_t count = 0
    cdef Header header
    while at != end:
        if header_at(at, end, &header):
            return 0
        size += bytes_size(header.key_size) + (bytes_size(header.value_size) if header.value_size > 0 else 1)
        count += 1
        at = header.next
    return size + varint_size(count)


cdef inline uint8_t *put_headers(uint8_t *out, uint8_t *limit, RecordFields *fields) noexcept nogil:
    """Write the count and the headers of a record, and return their end; NULL if they no longer end before `limit`."""
    cdef uint8_t *at = fields.headers
    cdef uint8_t *end = at + fields.headers_length
    cdef int64_t count = 0
    cdef Header header
    while at != end:
        if header_at(at, end, &header):
            return NULL
        count += 1
        at = header.next
    if varint_size(count) > <uint64_t>(limit - out):
        return NULL
    out = put_varint(out, count)
    at = fields.headers
    while at != end:
        if header_at(at, end, &header):
            return NULL
        if bytes_size(header.key_size) + bytes_size(max(header.value_size, 0)) > <uint64_t>(limit - out):
            return NULL
        out = put_bytes(out, header.key, header.key_size, 0)
        out = put_bytes(out, header.value, max(header.value_size, 0), header.value_size)
        at = header.next
    return out


cdef inline uint64_t body_size(Output *out, uint8_t *record, RecordFields *fields, int64_t *delta) noexcept nogil:
    """Return the next record's size without its length field; 0 for a damaged record.

    Store the record's timestamp delta in `delta`, and add its timestamp to the timestamps in `out`.
    """
    cdef uint64_t headers = headers_size(fields) if fields.headers_length else 1  # 1: size of the count 0
    cdef int64_t timestamp = <int64_t>load64(record + RECORD_TIMESTAMP)
    if out.records == 0:
        out.first_timestamp = out.max_timestamp = timestamp
    elif timestamp > out.max_timestamp:
        out.max_timestamp = timestamp
    delta[0] = <int64_t>(<uint64_t>timestamp - <uint64_t>out.first_timestamp)
    cdef uint64_t numbers = 1 + varint_size(delta[0]) + varint_size(<int64_t>out.records)  # 1: the attributes
    return (numbers + bytes_size(fields.key_length) + bytes_size(fields.value_length) + headers) if headers else 0


cdef inline int put_record(Output *out, uint8_t *record, RecordFields *fields) noexcept nogil:
    """Append a record to `out`, or in the first pass only add its size; return 0, or -1 for a damaged record."""
    cdef int64_t delta
    cdef uint64_t body = body_size(out, record, fields, &delta)
    cdef uint64_t size = body + varint_size(<int64_t>body)
    cdef uint8_t *at = out.at
    if body == 0:
        return -1
    if out.end != NULL:
        if size > <uint64_t>(out.end - at):
            return -1  # the record changed between the passes
        at = put_varint(at, <int64_t>body)
        at[0] = 0  # attributes
        at = put_varint(at + 1, delta)
        at = put_varint(at, <int64_t>out.records)
        at = put_bytes(at, fields.key, fields.key_length, empty_key_length(record))
        at = put_bytes(at, fields.value, fields.value_length, empty_value_length(out, record))
        if fields.headers_length == 0:
            at[0] = 0  # number of headers
        elif put_headers(at, out.at + size, fields) != out.at + size:
            return -1
    out.at += size
    out.records += 1
    return 0


def encode(slab, segments, *, keeps_empty_values=False):
    cdef Output out
    cdef tuple listed = tuple(segments)
    memset(&out, 0, sizeof(Output))
    out.empty_value = 0 if keeps_empty_values else -1
    data = encode_in_two_passes(slab, listed, &out, put_record)
    if data is None:
        runs.raise_damage(slab, listed)
    return Encoded(data, out.records, out.first_timestamp, out.max_timestamp)


# --- a whole batch ---------------------------------------------------------------------------------------------------
cdef enum:
    LENGTH_AT = 8   # of the bytes behind the length
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    COVERED_AT = 21   # the CRC covers the bytes from here, the attributes, to the end of the batch
    LAST_OFFSET_DELTA_AT = 23
    HEADER_BYTES = 61


cdef void put_header(
    uint8_t *at, uint64_t size, Output *out, int64_t producer_id, int epoch, int sequence
) noexcept nogil:
    """Write the header of a batch with `size` bytes of records, except for its CRC."""
    memset(at, 0, HEADER_BYTES)
    put_big32(at + LENGTH_AT, <uint32_t>(HEADER_BYTES - LEADER_EPOCH_AT + size))
    put_big32(at + LEADER_EPOCH_AT, 0xFFFFFFFFU)  # not known
    at[MAGIC_AT] = 2
    put_big32(at + LAST_OFFSET_DELTA_AT, <uint32_t>(out.records - 1))
    # The next fields: first and largest timestamp, producer id, epoch, sequence number, record count.
    at = put_big64(at + LAST_OFFSET_DELTA_AT + 4, <uint64_t>out.first_timestamp)
    at = put_big64(put_big64(at, <uint64_t>out.max_timestamp), <uint64_t>producer_id)
    at[0], at[1] = (epoch >> 8) & 0xFF, epoch & 0xFF
    put_big32(put_big32(at + 2, <uint32_t>sequence), <uint32_t>out.records)


cdef tuple encode_batch(
    object slab, Memory *memory, tuple segments, int64_t producer_id, int epoch, int sequence, int64_t empty_value
):
    """Return the header and the records of a batch; `memory` is the attached memory of `slab`."""
    cdef Output out
    cdef uint8_t *at
    memset(&out, 0, sizeof(Output))
    out.empty_value = empty_value
    data = encode_attached(memory, segments, &out, put_record)
    if data is None:
        runs.raise_damage(slab, segments)
    if not out.records:
        raise LocalProtocolError("A record batch has at least one record, not 0.")
    header = PyBytes_FromStringAndSize(NULL, HEADER_BYTES)
    at = <uint8_t *>PyBytes_AS_STRING(header)
    put_header(at, PyBytes_GET_SIZE(data), &out, producer_id, epoch, sequence)
    covered = PyBytes_FromStringAndSize(<char *>at + COVERED_AT, HEADER_BYTES - COVERED_AT)
    put_big32(at + CRC_AT, extend(value(covered), data))
    return header, data


def record_batch(slab, segments, producer, *, keeps_empty_values=False):
    cdef Memory memory
    cdef int64_t producer_id = producer[0]
    cdef int epoch = producer[1], sequence = producer[2]
    cdef int64_t empty_value = 0 if keeps_empty_values else -1
    attach(slab, &memory)
    try:
        return encode_batch(slab, &memory, tuple(segments), producer_id, epoch, sequence, empty_value)
    finally:
        release(&memory)


# --- the topics of a request ------------------------------------------------------------------------------------------
cdef enum:
    MAX_UVARINT = 5      # bytes of a 32-bit number, 7 bits in each


cdef inline uint8_t *put_length(uint8_t *at, uint64_t length, bint is_flexible) noexcept nogil:
    """Write the length of an array or of records."""
    # A flexible version writes the length plus 1, because 0 stands for null there.
    return put_uvarint(at, length + 1) if is_flexible else put_big32(at, <uint32_t>length)


cdef bytes array_length(uint64_t length, bint is_flexible):
    """Return the length field of an array."""
    cdef uint8_t field[MAX_UVARINT]
    cdef uint8_t *end = put_length(field, length, is_flexible)
    return PyBytes_FromStringAndSize(<char *>field, end - field)


cdef bytes topic_head(bytes name, uint64_t partition_count, bint is_flexible):
    """Return the name with its length, and the length of the array of partitions."""
    cdef uint8_t field[2]
    cdef uint64_t length = len(name)
    if is_flexible:
        return array_length(length, True) + name + array_length(partition_count, True)
    if length > 0x7FFF:
        raise ValueError("The name of a topic is too long.")
    field[0], field[1] = length >> 8, length & 0xFF
    return PyBytes_FromStringAndSize(<char *>field, 2) + name + array_length(partition_count, False)


cdef bytes partition_head(int32_t partition, uint64_t size, bint is_flexible):
    """Return the index of a partition and the size of its record batch."""
    cdef uint8_t field[4 + MAX_UVARINT]
    cdef uint8_t *end = put_length(put_big32(field, <uint32_t>partition), size, is_flexible)
    return PyBytes_FromStringAndSize(<char *>field, end - field)


def produce_topics(slab, int version, names, batches, producer_id, *, bint keeps_empty_values):
    cdef bint is_flexible = version >= FIRST_FLEXIBLE_VERSION
    cdef uint64_t max_copied_bytes = COPIED_BYTES  # larger records stay separate buffers
    cdef int64_t batch_producer_id, empty_value = 0 if keeps_empty_values else -1
    cdef dict topics = {}
    cdef list buffers = [], parts, batches_of_topic
    cdef bytes no_tags = b"\0" if is_flexible else b"", header, data  # the number of tagged fields: 0
    cdef Memory memory
    for name, batch in zip(names, batches, strict=True):
        topics.setdefault(name, []).append(batch)
    parts = [array_length(len(topics), is_flexible)]
    attach(slab, &memory)
    try:
        for name, batches_of_topic in topics.items():
            parts.append(topic_head(name, len(batches_of_topic), is_flexible))
            for _topic, partition, epoch, sequence, segments in batches_of_topic:  # the fields of a `BuiltBatch`
                batch_producer_id = producer_id
                if sequence < 0:
                    batch_producer_id, epoch, sequence = NO_PRODUCER
                header, data = encode_batch(slab, &memory, segments, batch_producer_id, epoch, sequence, empty_value)
                parts.append(partition_head(partition, len(header) + len(data), is_flexible))
                parts.append(header)
                if <uint64_t>len(data) > max_copied_bytes:
                    buffers.append(b"".join(parts))
                    buffers.append(data)
                    parts = []
                else:
                    parts.append(data)
                parts.append(no_tags)
            parts.append(no_tags)
    finally:
        release(&memory)
    parts.append(no_tags)
    buffers.append(b"".join(parts))
    return buffers
