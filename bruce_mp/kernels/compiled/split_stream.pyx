"""Split the bytes of a stream into messages: see `kernels/pure/split_stream.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from bruce_mp.kernels.compiled.wire cimport *

from bruce_mp.kernels.pure.split_stream import SplitStop, StreamSplit


cdef enum:
    SIZE_BYTES = 4
    HEADER = 8           # size, API key, version
    BARRIER_KEY = 258
    BEGIN_KEY = 260
    END_KEY = 261


def split_stream(buffer, int64_t at, int64_t end, int64_t longest):
    cdef Py_buffer source
    cdef uint8_t *base
    cdef int64_t size = 0
    cdef int key
    cdef list places = []
    stop = SplitStop.MORE
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or end > source.len:
            raise ValueError("The bytes to split lie outside of the buffer.")
        base = <uint8_t *>source.buf
        while True:
            size = 0
            if at + SIZE_BYTES > end:
                break
            size = <int32_t>big32(base + at)
            if size < SIZE_BYTES:
                stop = SplitStop.INVALID_SIZE
                break
            if size > longest:
                stop = SplitStop.TOO_LARGE
                break
            if at + size > end:
                break
            key = big16(base + at + 4) if size >= HEADER else 0
            if key == BARRIER_KEY:
                stop = SplitStop.BARRIER
                break
            if key == BEGIN_KEY or key == END_KEY:
                stop = SplitStop.FENCE
                break
            places.append((at, size))
            at += size
        return StreamSplit(places, at, stop, size)
    finally:
        PyBuffer_Release(&source)
