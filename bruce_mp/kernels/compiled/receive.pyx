"""Receive a batch of datagrams into the landing zone with one `recvmmsg()`: see `kernels/pure/receive.py`."""

from libc.errno cimport EAGAIN, EINTR, errno

from bruce_mp.kernels.compiled.memory cimport *

import os

from bruce_mp.kernels.pure.receive import DatagramReceiver as PureDatagramReceiver

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    """
    struct mmsghdr:
        pass
    int MSG_DONTWAIT
    int recvmmsg(int, mmsghdr *, unsigned int, int, void *) nogil


class DatagramReceiver(PureDatagramReceiver):
    """The pure receiver, which prepares the message headers, with one C call for each batch."""

    def __init__(self, slab):
        super().__init__(slab)
        self._slab = slab
        self._headers_at = slab.geometry.landing_at + LANDING_HEADERS

    def receive(self, int descriptor, limit):
        cdef Memory memory
        cdef uint64_t at = self._headers_at
        cdef unsigned int most = min(limit, self._slots)
        cdef mmsghdr *headers
        cdef int count, error
        attach(self._slab, &memory)
        headers = <mmsghdr *>(<uint8_t *>memory.buffer.buf + at)
        with nogil:
            count = recvmmsg(descriptor, headers, most, MSG_DONTWAIT, NULL)
        error = errno
        release(&memory)
        if count >= 0:
            return count
        if error == EAGAIN or error == EINTR:
            return 0
        raise OSError(error, os.strerror(error))
