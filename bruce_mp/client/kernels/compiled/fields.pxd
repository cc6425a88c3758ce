# The fields of a message, and their bytes: see `protocol/client/messages.py`.

from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_Size
from cpython.bytes cimport PyBytes_AsString, PyBytes_Size
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef extern from *:
    """
    #define store_big16(at, value) do { uint16_t big_ = __builtin_bswap16((uint16_t)(value)); memcpy(at, &big_, 2); } while (0)
    #define store_big32(at, value) do { uint32_t big_ = __builtin_bswap32((uint32_t)(value)); memcpy(at, &big_, 4); } while (0)
    #define store_big64(at, value) do { uint64_t big_ = __builtin_bswap64((uint64_t)(value)); memcpy(at, &big_, 8); } while (0)
    """
    void store_big16(uint8_t *, uint16_t) noexcept nogil
    void store_big32(uint8_t *, uint32_t) noexcept nogil
    void store_big64(uint8_t *, uint64_t) noexcept nogil

cdef enum:
    ANY_PARTITION = 256
    PARTITION_KEY = 257
    PLAIN_VERSION = 0
    NULLS_VERSION = 2
    MAX_TOPIC = 0x7FFF
    FIXED_BYTES = 28          # of an AnyPartition message without topic, key, value and headers
    PARTITION_KEY_BYTES = 4
    HEADERS_BYTES = 4         # the headers' size field, which is 0; only in NULLS_VERSION


cdef struct Bytes:
    const char *at
    Py_ssize_t size           # -1: null


cdef struct Fields:           # valid while the caller holds the objects from which it was read
    Bytes topic, key, value
    bint has_partition_key, has_nulls
    uint32_t partition_key
    int64_t timestamp_ms
    Py_ssize_t size           # of the encoded message


cdef inline bint read_bytes(object held, Bytes *found) except -1:
    """Read bytes or None; return False for another type, which the pure kernel encodes or refuses."""
    if held is None:
        found.at, found.size = NULL, -1
    elif type(held) is bytes:
        found.at, found.size = PyBytes_AsString(held), PyBytes_Size(held)
    elif type(held) is bytearray:
        found.at, found.size = PyByteArray_AsString(held), PyByteArray_Size(held)
    else:
        return False
    return True


cdef inline bint read_topic(object topic, Bytes *found) except -1:
    if type(topic) is str:
        found.at = PyUnicode_AsUTF8AndSize(topic, &found.size)
    elif not read_bytes(topic, found):
        return False
    return 0 < found.size <= MAX_TOPIC


cdef inline bint read_integer(object number, int64_t *found) except -1:
    cdef int overflow = 0
    if type(number) is not int:
        return False
    found[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return not overflow


cdef inline int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef inline bint read_fields(
    Fields *fields, object topic, object value, object key, object partition_key, object timestamp_ms, object headers,
    bint keep_empty,          # not an object: its `__bool__` could change the buffers to which `fields` points
) except -1:
    """Read the fields of a message; return False for headers, and for values that only the pure kernel handles."""
    cdef int64_t number = 0
    if (type(headers) is not tuple and type(headers) is not list) or headers:
        return False
    if not read_topic(topic, &fields.topic):
        return False
    if not read_bytes(key, &fields.key) or not read_bytes(value, &fields.value):
        return False
    fields.has_partition_key = partition_key is not None
    if fields.has_partition_key:
        if not read_integer(partition_key, &number) or not -0x80000000LL <= number <= 0xFFFFFFFFLL:
            return False
        fields.partition_key = <uint32_t>number
    if timestamp_ms is None:
        fields.timestamp_ms = now_ms()
    elif not read_integer(timestamp_ms, &fields.timestamp_ms):
        return False
    choose_version(fields, keep_empty)
    return True


cdef inline void choose_version(Fields *fields, bint keep_empty) noexcept nogil:
    """Choose the lowest version that can express key and value, and compute the size."""
    fields.has_nulls = fields.value.size < 0 or keep_empty and (fields.value.size == 0 or fields.key.size == 0)
    if fields.key.size <= 0 and not (fields.has_nulls and keep_empty):
        fields.key.size = -1 if fields.has_nulls else 0
    fields.size = (
        FIXED_BYTES
        + (PARTITION_KEY_BYTES if fields.has_partition_key else 0)
        + (HEADERS_BYTES if fields.has_nulls else 0)
        + fields.topic.size
        + max(fields.key.size, 0)
        + max(fields.value.size, 0)
    )


cdef inline uint8_t *write_sized(uint8_t *at, const Bytes *field) noexcept nogil:
    store_big32(at, <uint32_t>field.size)
    if field.size > 0:
        memcpy(at + 4, field.at, field.size)
        return at + 4 + field.size
    return at + 4


cdef inline void write_fields(const Fields *fields, uint8_t *at) noexcept nogil:
    """Write the `fields.size` bytes of the message."""
    store_big32(at, <uint32_t>fields.size)
    store_big16(at + 4, PARTITION_KEY if fields.has_partition_key else ANY_PARTITION)
    store_big16(at + 6, NULLS_VERSION if fields.has_nulls else PLAIN_VERSION)
    store_big16(at + 8, 0)
    at += 10
    if fields.has_partition_key:
        store_big32(at, fields.partition_key)
        at += PARTITION_KEY_BYTES
    store_big16(at, <uint16_t>fields.topic.size)
    memcpy(at + 2, fields.topic.at, fields.topic.size)
    at += 2 + fields.topic.size
    store_big64(at, <uint64_t>fields.timestamp_ms)
    at = write_sized(at + 8, &fields.key)
    at = write_sized(at, &fields.value)
    if fields.has_nulls:
        store_big32(at, 0)
