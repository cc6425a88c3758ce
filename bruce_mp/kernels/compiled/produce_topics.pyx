"""Encode the topics of a produce request: see `kernels/pure/produce_topics.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bruce_mp.kernels.compiled.encode cimport encode_batch
from bruce_mp.kernels.compiled.frame cimport put_big32, put_uvarint
from bruce_mp.kernels.compiled.memory cimport *

from bruce_mp.protocol.kafka.produce_request import COPIED_BYTES, FIRST_FLEXIBLE_VERSION
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER


cdef enum:
    MAX_UVARINT = 5      # bytes of a 32-bit number, 7 bits in each


cdef inline uint8_t *put_length(uint8_t *at, uint64_t length, bint is_flexible) noexcept nogil:
    """Write the length of an array or of records."""
    # In Kafka's compact notation 0 is null.
    return put_uvarint(at, length + 1) if is_flexible else put_big32(at, <uint32_t>length)


cdef bytes array_length(uint64_t length, bint is_flexible):
    cdef uint8_t field[MAX_UVARINT]
    cdef uint8_t *end = put_length(field, length, is_flexible)
    return PyBytes_FromStringAndSize(<char *>field, end - field)


cdef bytes topic_head(bytes name, uint64_t partitions, bint is_flexible):
    """Return the name with its length, and the length of the array of partitions."""
    cdef uint8_t field[2]
    cdef uint64_t length = len(name)
    if is_flexible:
        return array_length(length, True) + name + array_length(partitions, True)
    if length > 0x7FFF:
        raise ValueError("The name of a topic is too long.")
    field[0], field[1] = length >> 8, length & 0xFF
    return PyBytes_FromStringAndSize(<char *>field, 2) + name + array_length(partitions, False)


cdef bytes partition_head(int32_t partition, uint64_t size, bint is_flexible):
    """Return the index of a partition and the size of its record batch."""
    cdef uint8_t field[4 + MAX_UVARINT]
    cdef uint8_t *end = put_length(put_big32(field, <uint32_t>partition), size, is_flexible)
    return PyBytes_FromStringAndSize(<char *>field, end - field)


def produce_topics(slab, int version, names, batches, producer_id, *, bint keeps_empty_values):
    cdef bint is_flexible = version >= FIRST_FLEXIBLE_VERSION
    cdef uint64_t max_copied_bytes = COPIED_BYTES
    cdef int64_t number, empty_value = 0 if keeps_empty_values else -1
    cdef dict topics = {}
    cdef list buffers = [], parts, batches_of_topic
    cdef bytes no_tags = b"\0" if is_flexible else b"", header, data  # the number of tagged fields
    cdef Memory memory
    for name, batch in zip(names, batches, strict=True):
        topics.setdefault(name, []).append(batch)
    parts = [array_length(len(topics), is_flexible)]
    attach(slab, &memory)
    try:
        for name, batches_of_topic in topics.items():
            parts.append(topic_head(name, len(batches_of_topic), is_flexible))
            for _topic, partition, epoch, sequence, segments in batches_of_topic:  # the fields of a `SentBatch`
                number = producer_id
                if sequence < 0:
                    number, epoch, sequence = NO_PRODUCER
                header, data = encode_batch(slab, &memory, segments, number, epoch, sequence, empty_value)
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
