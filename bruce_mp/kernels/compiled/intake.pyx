"""Receive datagrams, append them to lanes and commit them, batch by batch: see `kernels/pure/intake.py`."""

from libc.errno cimport EAGAIN, EINTR, errno

from bruce_mp.kernels.compiled.arrival_rate cimport ArrivalRate
from bruce_mp.kernels.compiled.lanes cimport (
    IngestBatch, Landing, WaitLimits, append_groups, begin_batch, find_landing_zone, longest_wait_ms, read_landed,
)
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.rows cimport commit_landed_batch

import os

from bruce_mp.kernels.pure.intake import DatagramIntake as PureDatagramIntake
from bruce_mp.kernels.pure.intake import DatagramReceiver as PureDatagramReceiver
from bruce_mp.kernels.pure.intake import IntakeResult
from bruce_mp.slab import layout


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <sys/socket.h>
    #include <time.h>
    """
    struct mmsghdr:
        unsigned int msg_len
    int MSG_DONTWAIT
    int MSG_WAITFORONE
    int recvmmsg(int, mmsghdr *, unsigned int, int, void *) nogil
    struct pollfd:
        int fd
        short events
        short revents
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    struct timeval:
        long tv_sec
        long tv_usec
    int POLLIN
    int POLLRDHUP
    int SOL_SOCKET
    int SO_RCVTIMEO
    int clock_gettime(int, timespec *) nogil
    int nanosleep(timespec *, timespec *) nogil
    int poll(pollfd *, unsigned long, int) nogil
    int setsockopt(int, int, int, void *, unsigned int) nogil


cdef enum:
    MAX_TIMER_DELAY_MS = 8   # the maximum delay of a socket's timeout


cdef int receive_into(uint8_t *headers, int descriptor, unsigned int limit, int flags) except -1:
    """Receive datagrams into the slots of `headers`; return their number.  Raises OSError if the socket is broken."""
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
    """Calls `recvmmsg()` without ctypes; the base class prepares the message headers."""

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


class DatagramIntake(PureDatagramIntake):
    """See `kernels.pure.intake.DatagramIntake`."""

    rate_type = ArrivalRate

    def __init__(self, slab, receiver, lanes, row, *, max_size, counters):
        super().__init__(slab, receiver, lanes, row, max_size=max_size, counters=counters)
        if max_size > slab.geometry.landing_slot_size or max(counters) >= ROW_COUNTER_CAPACITY:
            raise ValueError("The slab has no such slots or counters.")
        self._timer_ms = 0  # the socket's timeout (see `receive_within`); 0 = never set

    def run(self, int descriptor, int limit, int64_t now_ms, int64_t until_ms):
        lanes, geometry = self._lanes, self._lanes._slab.geometry
        cdef IngestBatch batch = lanes._batch
        cdef Memory memory
        cdef Landing landing
        cdef uint64_t row_at = self._row._at
        cdef uint64_t counters[4]
        cdef uint64_t amounts[4]
        cdef uint8_t *base
        cdef uint8_t *row
        cdef int64_t committed = 0, now_us, nap_us
        cdef int64_t offset_ms = now_ms - monotonic_us() // 1000  # the caller's clock minus the monotonic one
        cdef int64_t publish_ms = lanes.publish_ms
        cdef ArrivalRate rate = self._rate
        cdef int count, max_count, slots = geometry.landing_slots, left_ms, timer_ms = self._timer_ms
        cdef WaitLimits *limits = &batch.limits
        counters[0], counters[1], counters[2], counters[3] = self._counters
        read_wait_limits(lanes, batch)
        left_ms = longest_wait_ms(limits, until_ms, now_ms)
        attach(lanes._slab, &memory)
        try:
            find_landing_zone(geometry, &memory, slots, self._max_size, &landing)
            base = <uint8_t *>memory.buffer.buf
            row = base + row_at
            while committed < limit:
                max_count = <int>min(limit - committed, slots)
                count = receive_within(
                    descriptor, landing.headers, max_count, left_ms, limits.leeway_ms, now_ms - offset_ms, &timer_ms
                )
                if count == 0:
                    break
                now_us = monotonic_us()
                now_ms = now_us // 1000 + offset_ms
                begin_batch(lanes, batch, base, row)
                read_landed(&landing, batch, count, None)
                append_groups(lanes, batch, base, now_ms)
                if batch.rejections or batch.no_room:
                    return IntakeResult(committed, count, batch.outcome())
                amounts[0] = amounts[1] = count  # received, forwarded
                amounts[2], amounts[3] = batch.any_partition_count, batch.partition_key_count
                commit_landed_batch(&memory, row, landing.at, counters, amounts, count)
                committed += count
                rate.add(count, batch.wire_bytes)
                if batch.are_limits_stale:
                    read_wait_limits(lanes, batch)
                    publish_ms = lanes.publish_ms
                if now_ms >= publish_ms:
                    break
                left_ms = 0
                if count < max_count:  # the queue is empty
                    left_ms = longest_wait_ms(limits, until_ms, now_ms)
                    if not left_ms:
                        break
                    nap_us = rate.nap_us(now_us, <int64_t>left_ms * 1000)
                    if nap_us:
                        sleep_us(nap_us)
                        now_ms = monotonic_us() // 1000 + offset_ms
                        left_ms = longest_wait_ms(limits, until_ms, now_ms)
            return IntakeResult(committed, 0, None)
        finally:
            self._timer_ms = timer_ms
            release(&memory)


cdef int read_wait_limits(lanes, IngestBatch batch) except -1:
    """Copy the times that limit a wait from the lanes to the batch."""
    due_ms = lanes._next_due_ms
    batch.limits.due_ms = 0 if due_ms is None else due_ms
    batch.limits.leeway_ms = lanes.leeway_ms
    batch.are_limits_stale = False
    return 0


cdef int64_t monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef void sleep_us(int64_t microseconds) noexcept:
    cdef timespec pause
    pause.tv_sec, pause.tv_nsec = microseconds // 1000000, microseconds % 1000000 * 1000
    with nogil:
        nanosleep(&pause, NULL)


cdef int receive_within(
    int descriptor, uint8_t *headers, unsigned int limit, int left_ms, int leeway_ms, int64_t start_ms, int *timer_ms
) except -1:
    """Receive datagrams into the landing zone; return their number.

    The call waits for the first datagram until `left_ms` after `start_ms`, and may end late by `leeway_ms`.  It first
    calls a blocking receive, which the socket's timeout (SO_RCVTIMEO) ends, so a message costs one system call and no
    precise timer.  The timeout is late by up to MAX_TIMER_DELAY_MS, and each change of it costs a system call.  So the
    present timeout, `timer_ms`, is shorter than the wait, and the call changes it only if it is too long or far too
    short.  poll() waits for the remaining time.
    """
    cdef int max_timer_ms = left_ms + leeway_ms - MAX_TIMER_DELAY_MS, new_ms, count
    cdef pollfd waiting
    if max_timer_ms > 0:
        if timer_ms[0] == 0 or timer_ms[0] > max_timer_ms or timer_ms[0] < max_timer_ms // 4:  # 0: never set
            new_ms = max(1, max_timer_ms // 2)  # a timeout of 0 would never end the receive
            set_timer(descriptor, new_ms)
            timer_ms[0] = new_ms  # only now, because `set_timer` may raise
        count = receive_into(headers, descriptor, limit, MSG_WAITFORONE)
        if count == 1 and (<mmsghdr *>headers).msg_len == 0 and is_shut(descriptor):
            (<mmsghdr *>headers).msg_len = <uint32_t>layout.LANDING_EMPTY
            return 0  # no message: Linux returns an empty one from a blocking call if the socket is shut down
        if count:
            return count
        left_ms -= <int>(monotonic_us() // 1000 - start_ms)
    if left_ms > 0:
        waiting.fd, waiting.events = descriptor, POLLIN
        with nogil:
            poll(&waiting, 1, left_ms)
    return receive_into(headers, descriptor, limit, MSG_DONTWAIT)


cdef bint is_shut(int descriptor) noexcept:
    """Return True if the socket is shut down, so that it receives no more datagrams."""
    cdef pollfd probe
    probe.fd, probe.events, probe.revents = descriptor, POLLRDHUP, 0
    return poll(&probe, 1, 0) == 1 and probe.revents & POLLRDHUP != 0


cdef int set_timer(int descriptor, int milliseconds) except -1:
    """Set the socket's timeout for blocking receives.  Raises OSError if the socket is broken."""
    cdef timeval time
    time.tv_sec, time.tv_usec = milliseconds // 1000, milliseconds % 1000 * 1000
    if setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)):
        raise OSError(errno, os.strerror(errno))
    return 0
