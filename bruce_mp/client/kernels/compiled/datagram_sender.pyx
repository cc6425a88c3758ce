"""The sender of datagrams: see `client/kernels/pure/datagram_sender.py`.

It does not release the GIL, because the call does not wait and other threads share the buffer.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.mem cimport PyMem_Free, PyMem_Malloc

from bruce_mp.client.kernels.compiled.fields cimport *

import os

cdef extern from "<sys/socket.h>" nogil:
    enum: AF_UNIX
    enum: MSG_DONTWAIT
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    Py_ssize_t sendto(int, const void *, size_t, int, const sockaddr *, socklen_t)

cdef extern from "<sys/un.h>" nogil:
    struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]

cdef extern from "<stddef.h>":
    size_t PATH_OFFSET "offsetof(struct sockaddr_un, sun_path)"

cdef enum:
    CLOSED = -1
    LARGEST_BUFFER = 1 << 20   # in bytes; a larger message takes the slow path, so that a client needs little memory


cdef class DatagramSender:
    cdef readonly uint64_t sent, sent_bytes
    cdef int descriptor
    cdef Py_ssize_t capacity
    cdef uint8_t *buffer
    cdef sockaddr_un daemon
    cdef socklen_t daemon_size

    def __init__(self, lock, opened, path, Py_ssize_t max_message):
        name = os.fsencode(path)
        # The buffer exists already if a caller repeats `__init__`; a second one would leak it.
        if len(name) >= <Py_ssize_t>sizeof(self.daemon.sun_path) or self.buffer != NULL:
            raise ValueError(path)
        memset(&self.daemon, 0, sizeof(self.daemon))
        self.daemon.sun_family = AF_UNIX
        memcpy(self.daemon.sun_path, <const char *>name, len(name))
        self.daemon_size = <socklen_t>(PATH_OFFSET + len(name))
        self.capacity = max(0, min(max_message, <Py_ssize_t>LARGEST_BUFFER))
        self.buffer = <uint8_t *>PyMem_Malloc(self.capacity)
        if self.buffer == NULL:
            raise MemoryError
        self.descriptor = opened.fileno()

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def accept(self, topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
        cdef Fields fields
        if not read_fields(&fields, topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
            return False
        if fields.size > self.capacity or self.descriptor == CLOSED:
            return False
        write_fields(&fields, self.buffer)
        if self.send(fields.size) < 0:
            return False
        self.sent += 1
        self.sent_bytes += fields.size
        return True

    cdef Py_ssize_t send(self, Py_ssize_t size) noexcept:
        cdef const sockaddr *daemon = <const sockaddr *>&self.daemon
        return sendto(self.descriptor, self.buffer, size, MSG_DONTWAIT, daemon, self.daemon_size)

    def count(self, Py_ssize_t size):
        self.sent += 1
        self.sent_bytes += size

    def close(self):
        self.descriptor = CLOSED
