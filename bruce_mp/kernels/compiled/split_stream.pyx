"""Split the bytes of a stream into messages: see `kernels/pure/split_stream.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from bruce_mp.kernels.compiled.wire cimport *

from bruce_mp.kernels.pure.split_stream import SplitStop, StreamSplit


cdef enum:
    SIZE_BYTES = 4
    HEADER_BYTES = 8     # size, API key, version
    BARRIER_KEY = 258
    BEGIN_ATTEMPT_KEY = 260
    END_ATTEMPT_KEY = 261


cdef enum:               # as `SplitStop`
    MORE = 0
    INVALID_SIZE = 1
    TOO_LARGE = 2
    BARRIER = 3
    FENCE = 4


cdef int find_stop(uint8_t *base, int64_t at, int64_t end, int64_t max_size, int64_t *size) noexcept nogil:
    """Return the reason to stop at `at`, or WHOLE, and store the size of the message or frame there; 0 = unknown."""
    cdef int key
    size[0] = 0
    if at + SIZE_BYTES > end:
        return MORE
    size[0] = <int32_t>big32(base + at)
    if size[0] < SIZE_BYTES:
        return INVALID_SIZE
    if size[0] > max_size:
        return TOO_LARGE
    if at + size[0] > end:
        return MORE
    key = big16(base + at + 4) if size[0] >= HEADER_BYTES else 0
    if key == BARRIER_KEY:
        return BARRIER
    if key == BEGIN_ATTEMPT_KEY or key == END_ATTEMPT_KEY:
        return FENCE
    return WHOLE


def split_stream(buffer, int64_t at, int64_t end, int64_t max_size):
    cdef Py_buffer source
    cdef int64_t size = 0
    cdef int stop
    cdef list extents = []
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or end > source.len:
            raise ValueError("The bytes to split lie outside of the buffer.")
        while True:
            stop = find_stop(<uint8_t *>source.buf, at, end, max_size, &size)
            if stop != WHOLE:
                return StreamSplit(extents, at, SplitStop(stop), size)
            extents.append((at, size))
            at += size
    finally:
        PyBuffer_Release(&source)
