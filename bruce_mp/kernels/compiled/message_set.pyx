"""Encode segments as a Kafka message set, formats 0 and 1: see `kernels/pure/message_set.py`."""

from libc.string cimport memcpy, memset

from bruce_mp.kernels.compiled.frame cimport *
from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.kernels.pure.message_set import EncodedSet
from bruce_mp.slab import runs


cdef enum:
    PREFIX_BYTES = 12 # the fields offset and size; the size counts only the bytes behind it
    CRC_AT = 12
    COVERED_AT = 16   # the CRC covers the rest: magic, attributes, the timestamp in format 1, key, value


cdef inline uint8_t *put_bytes(uint8_t *at, uint8_t *data, uint64_t length, uint32_t empty) noexcept nogil:
    """Write a length field and the bytes; `empty` is the content of the field if there are no bytes."""
    at = put_big32(at, <uint32_t>length if length else empty)
    memcpy(at, data, length)
    return at + length


cdef inline uint64_t message_size(RecordFields *fields, int magic) noexcept nogil:
    # 2: magic and attributes; 8: the timestamp; 8: the lengths of key and value
    return COVERED_AT + 2 + (8 if magic else 0) + 8 + fields.key_length + fields.value_length


cdef inline uint8_t *put_message(uint8_t *at, uint8_t *record, RecordFields *fields, Output *out) noexcept nogil:
    """Write a message, except for its CRC, and return its end."""
    put_big64(at, out.records if out.magic else 0)
    # The size, behind the 8 bytes of the offset.
    put_big32(at + 8, <uint32_t>(message_size(fields, out.magic) - PREFIX_BYTES))
    at += COVERED_AT
    at[0], at[1] = out.magic, 0
    at += 2
    if out.magic:
        at = put_big64(at, load64(record + RECORD_TIMESTAMP))
    at = put_bytes(at, fields.key, fields.key_length, <uint32_t>empty_key_length(record))
    return put_bytes(at, fields.value, fields.value_length, <uint32_t>empty_value_length(out, record))


# --- CRC-32, eight bytes at a time -----------------------------------------------------------------------------------
cdef uint32_t TABLES[8][256]   # TABLES[n][b]: the CRC of byte b with n zero bytes behind it


cdef void fill_tables() noexcept:
    cdef uint32_t value
    cdef int index, table, _
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (<uint32_t>0xEDB88320U if value & 1 else <uint32_t>0)
        TABLES[0][index] = value
    for index in range(256):
        for table in range(1, 8):
            value = TABLES[table - 1][index]
            TABLES[table][index] = (value >> 8) ^ TABLES[0][value & 0xFF]


fill_tables()


cdef uint32_t crc_of(uint8_t *at, uint8_t *end) noexcept nogil:
    cdef uint32_t crc = <uint32_t>-1
    cdef uint32_t low, high
    while end - at >= 8:
        memcpy(&low, at, 4)
        memcpy(&high, at + 4, 4)
        low ^= crc
        crc = (
            TABLES[7][low & 0xFF] ^ TABLES[6][(low >> 8) & 0xFF] ^ TABLES[5][(low >> 16) & 0xFF] ^ TABLES[4][low >> 24]
            ^ TABLES[3][high & 0xFF] ^ TABLES[2][(high >> 8) & 0xFF] ^ TABLES[1][(high >> 16) & 0xFF]
            ^ TABLES[0][high >> 24]
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ TABLES[0][(crc ^ at[0]) & 0xFF]
        at += 1
    return ~crc


# --- the set ---------------------------------------------------------------------------------------------------------
cdef inline int put_record(Output *out, uint8_t *record, RecordFields *fields) noexcept nogil:
    """Append a message to `out`, or in the first pass only add its size; return 0, or -1 if it does not fit."""
    cdef uint64_t size = message_size(fields, out.magic)
    cdef int64_t timestamp = <int64_t>load64(record + RECORD_TIMESTAMP)
    cdef uint8_t *end
    if out.records == 0 or timestamp > out.max_timestamp:
        out.max_timestamp = timestamp
    if out.end != NULL:
        if size > <uint64_t>(out.end - out.at):
            return -1  # the record changed between the passes
        end = put_message(out.at, record, fields, out)
        put_big32(out.at + CRC_AT, crc_of(out.at + COVERED_AT, end))
    out.at += size
    out.records += 1
    return 0


def encode_message_set(slab, segments, message_format, *, keeps_empty_values=False):
    cdef Output out
    cdef tuple listed = tuple(segments)
    memset(&out, 0, sizeof(Output))
    out.magic = int(message_format)
    out.empty_value = 0 if keeps_empty_values else -1
    data = encode_in_two_passes(slab, listed, &out, put_record)
    if data is None:
        runs.raise_damage(slab, listed)
    return EncodedSet(data, out.records, out.max_timestamp)
