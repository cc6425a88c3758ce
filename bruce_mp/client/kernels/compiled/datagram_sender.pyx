"""The sender of datagrams: see `client/kernels/pure/datagram_sender.py`.

It does not release the GIL, because the call does not wait and other threads share the buffer.
"""

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from posix.time cimport clock_gettime, timespec

from bruce_mp.client.kernels.compiled.fields cimport *

import os

cdef extern from "<sys/socket.h>" nogil:
    enum: AF_UNIX
    enum: MSG_DONTWAIT
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    int connect(int, const sockaddr *, socklen_t)
    Py_ssize_t send(int, const void *, size_t, int)

cdef extern from "<sys/un.h>" nogil:
    struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC_COARSE

cdef extern from "<stddef.h>":
    size_t PATH_OFFSET "offsetof(struct sockaddr_un, sun_path)"

cdef enum:
    CLOSED = -1
    NEVER = -1
    LARGEST_BUFFER = 1 << 20   # in bytes; a larger message takes the slow path, so that a client needs little memory


cdef class DatagramSender:
    cdef readonly uint64_t sent, sent_bytes
    cdef int descriptor
    cdef Py_ssize_t capacity
    cdef uint8_t *buffer
    cdef sockaddr_un daemon
    cdef socklen_t daemon_size
    cdef long connected_in   # second of the monotonic clock; NEVER = the socket is not connected

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
        self.connected_in = NEVER
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
        if not self.is_connected():
            return False
        if send(self.descriptor, self.buffer, fields.size, MSG_DONTWAIT) < 0:
            if errno != EAGAIN:
                self.connected_in = NEVER
            return False
        self.sent += 1
        self.sent_bytes += fields.size
        return True

    cdef bint is_connected(self) noexcept:
        """Connect the socket once a second; return True if it is connected."""
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
        if self.connected_in == now.tv_sec:
            return True
        if connect(self.descriptor, <const sockaddr *>&self.daemon, self.daemon_size) < 0:
            return False
        self.connected_in = now.tv_sec
        return True

    def count(self, Py_ssize_t size):
        self.sent += 1
        self.sent_bytes += size

    def close(self):
        self.descriptor = CLOSED
