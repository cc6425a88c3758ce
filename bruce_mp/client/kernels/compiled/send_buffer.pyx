"""The send buffer of a stream client: see `client/kernels/pure/send_buffer.py`."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc

from bruce_mp.client.kernels.compiled.fields cimport *

from bruce_mp.client.kernels.pure.send_buffer import WrittenMessages

cdef enum:
    FIRST_CAPACITY = 128 * 1024
    FIRST_MESSAGES = 1024
    MAX_MESSAGE_BYTES = 0x7FFFFFFF   # `sizes` has it doubled, in 32 bits


cdef class SendBuffer:
    """`data` has the messages at offsets `start` to `end`. It is replaced, not resized, so a view of it stays valid.

    `sizes` has, at indexes `first` to `last`, twice the size of each message or frame, plus 1 for a message.
    """

    cdef readonly Py_ssize_t message_count
    cdef public Py_ssize_t fill_limit
    cdef Py_ssize_t max_message, start, end, capacity, first, last, sizes_capacity, written
    cdef uint32_t *sizes
    cdef uint8_t *at
    cdef bytearray data

    def __init__(self, lock, Py_ssize_t max_message):
        self.max_message = min(max_message, MAX_MESSAGE_BYTES)
        self.clear()

    def __dealloc__(self):
        PyMem_Free(self.sizes)

    def __len__(self):
        return self.end - self.start

    def accept(self, topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
        cdef Fields fields
        if not self.fill_limit:
            return False
        if not read_fields(&fields, topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
            return False
        if fields.size > self.max_message or self.end - self.start + fields.size > self.fill_limit:
            return False
        self.reserve(fields.size)
        write_fields(&fields, self.at + self.end)
        self.add(fields.size, True)
        return True

    def append(self, message, *, bint is_message=True):
        cdef Py_buffer held
        PyObject_GetBuffer(message, &held, PyBUF_SIMPLE)
        try:
            if held.len > MAX_MESSAGE_BYTES:
                raise OverflowError("The message has more than 2^31 - 1 bytes.")
            self.reserve(held.len)
            memcpy(self.at + self.end, held.buf, held.len)
            self.add(held.len, is_message)
        finally:
            PyBuffer_Release(&held)

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Make room for a message or frame of `size` bytes at the end."""
        if self.last == self.sizes_capacity:
            self.reserve_size()
        if self.end + size > self.capacity:
            self.replace_data(size)
        return 0

    cdef int reserve_size(self) except -1:
        cdef Py_ssize_t count = self.last - self.first, capacity
        cdef void *larger
        if self.first > count:
            memcpy(self.sizes, self.sizes + self.first, count * sizeof(uint32_t))
            self.first, self.last = 0, count
            return 0
        capacity = max(2 * self.sizes_capacity, <Py_ssize_t>FIRST_MESSAGES)
        larger = PyMem_Realloc(self.sizes, capacity * sizeof(uint32_t))
        if larger == NULL:
            raise MemoryError
        self.sizes, self.sizes_capacity = <uint32_t *>larger, capacity
        return 0

    cdef int replace_data(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t held = self.end - self.start
        cdef Py_ssize_t wanted = max(2 * (held + size), <Py_ssize_t>FIRST_CAPACITY)
        cdef bytearray data = PyByteArray_FromStringAndSize(NULL, wanted)
        cdef uint8_t *at = <uint8_t *>PyByteArray_AsString(data)
        if held:
            memcpy(at, self.at + self.start, held)
        self.data, self.at, self.capacity = data, at, wanted
        self.start, self.end = 0, held
        return 0

    cdef void add(self, Py_ssize_t size, bint is_message) noexcept:
        self.sizes[self.last] = <uint32_t>size << 1 | is_message
        self.last += 1
        self.end += size
        self.message_count += is_message

    cdef Py_ssize_t drop_first(self) noexcept:
        """Remove the first message or frame, and return its entry of `sizes`."""
        cdef uint32_t dropped = self.sizes[self.first]
        self.first += 1
        self.start += dropped >> 1
        self.message_count -= dropped & 1
        if self.first == self.last:
            self.first = self.last = 0
            self.start = self.end = 0
            if self.capacity > FIRST_CAPACITY:
                self.release()
        return dropped

    cdef void release(self) noexcept:
        self.data, self.at, self.capacity = None, NULL, 0

    def unwritten(self):
        if self.data is None:
            return memoryview(b"")
        return memoryview(self.data)[self.start + self.written : self.end]

    def on_written(self, Py_ssize_t size):
        cdef Py_ssize_t message_count = 0, byte_count = 0, dropped
        self.written += size
        while self.first < self.last and self.written - byte_count >= <Py_ssize_t>(self.sizes[self.first] >> 1):
            dropped = self.drop_first()
            byte_count += dropped >> 1
            message_count += dropped & 1
        self.written -= byte_count
        return WrittenMessages(message_count, byte_count)

    def rewind(self):
        was_partial, self.written = self.written > 0, 0
        return was_partial

    def remove_last(self):
        if self.first == self.last or (self.last - self.first == 1 and self.written):
            return False
        self.last -= 1
        self.end -= self.sizes[self.last] >> 1
        self.message_count -= self.sizes[self.last] & 1
        return True

    def remove_first(self):
        assert not self.written
        return self.drop_first() & 1

    def clear(self):
        lost_count = self.message_count
        self.release()
        self.start = self.end = self.first = self.last = self.written = self.message_count = 0
        return lost_count
