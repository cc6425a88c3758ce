# The wire format of clients: big-endian numbers, and record headers as in `protocol/client/record_headers.py`.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef inline uint32_t big32(uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int big16(uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline int64_t big64(uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>big32(at) << 32 | big32(at + 4))


cdef struct Header:      # a record header
    uint8_t *key
    uint8_t *value
    int64_t key_size, value_size   # `value_size` is -1 for null
    uint8_t *next


cdef inline int header_at(uint8_t *at, uint8_t *end, Header *found) noexcept nogil:
    """Read the record header at `at`; return 0 if it ends at or before `end`, otherwise -1.

    Each number is loaded once, because another process may change the bytes during the call.
    """
    if end - at < 6:  # sizes of the key (2 bytes) and of the value (4)
        return -1
    cdef int64_t key_size = big16(at)
    if key_size < 0 or end - at < key_size + 6:
        return -1
    cdef uint8_t *value = at + key_size + 6
    cdef int64_t value_size = <int32_t>big32(value - 4)
    if value_size < -1 or value_size > end - value:
        return -1
    found.key, found.key_size, found.value, found.value_size = at + 2, key_size, value, value_size
    found.next = value + value_size if value_size > 0 else value
    return 0


cdef inline int check_headers(uint8_t *at, uint8_t *end) noexcept nogil:
    """Return 0 if the bytes are exactly a sequence of record headers, else -1."""
    cdef Header header
    while at != end:
        if header_at(at, end, &header):
            return -1
        at = header.next
    return 0
