"""Receive a batch of datagrams into the landing zone with one `recvmmsg()`: see `kernels/pure/receive.py`."""

from libc.errno cimport EAGAIN, EINTR, errno

from bruce_mp.kernels.compiled.memory cimport *

import os

from bruce_mp.kernels.pure.receive import DatagramReceiver as PureDatagramReceiver

cdef extern from *:
    int recvmmsg(int, mmsghdr *, unsigned int, int, void *) nogil


cdef int receive_into(uint8_t *headers, int descriptor, unsigned int limit, int flags) except -1:
    """Receive datagrams into the slots of `headers`; return their number.  Raises OSError for a broken socket."""
    cdef int count, error
    with nogil:
        count = recvmmsg(descriptor, <mmsghdr *>headers, limit, flags, NULL)
    if count >= 0:
        return count
    error = errno
    if error == EAGAIN or error == EINTR:
        return 0
    raise OSError(error, os.strerror(error))


class DatagramReceiver(PureDatagramReceiver):
    """The pure receiver, which prepares the message headers, with a direct call of `recvmmsg()`."""

    def __init__(self, slab):
        super().__init__(slab)
        self._slab = slab
        self._headers_at = slab.geometry.landing_at + LANDING_HEADERS

    def receive(self, int descriptor, limit):
        cdef Memory memory
        cdef uint64_t at = self._headers_at
        cdef unsigned int max_count = min(limit, self._slots)
        attach(self._slab, &memory)
        try:
            return receive_into(<uint8_t *>memory.buffer.buf + at, descriptor, max_count, MSG_DONTWAIT)
        finally:
            release(&memory)
