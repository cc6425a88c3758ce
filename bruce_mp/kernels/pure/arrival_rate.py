"""The arrival rate of messages, and the length of a nap before the next receive.

A wake-up costs an input more CPU than the receipt of a message.  So while messages come fast, the input sleeps until
several messages wait.  Such a sleep is a *nap*.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

__all__ = ["NO_COALESCING", "ArrivalRate", "Coalescing"]

WINDOW_US: Final = 2000
"""Minimum length of a window over which the rate is measured."""
AWAKE_INTERVAL_US: Final = 500_000
"""Time from one window without naps to the next.  A window with naps may show too low a rate, as naps slow senders."""
MIN_MESSAGES: Final = 3
"""Minimum number of messages expected during a nap: with fewer, the timer costs as much as the nap saves."""
MIN_NAP_US: Final = 400
"""Length of the shortest nap: a shorter nap saves less than its system call costs."""
OVERHEAD_BYTES: Final = 768
"""Linux charges a datagram to the sender's send buffer with twice its length and these bytes."""


class Coalescing(NamedTuple):
    """The limits of a nap: its length, the messages expected during it, and the bytes that Linux charges for them.

    `max_messages` is below the capacity of the socket's queue, `max_bytes` is below the capacity of a send buffer.
    """

    max_nap_us: int
    max_messages: int
    max_bytes: int


NO_COALESCING: Final = Coalescing(max_nap_us=0, max_messages=0, max_bytes=0)


class ArrivalRate:
    """The arrival rate of an input's messages.  Times are in microseconds of a steady clock."""

    def __init__(self, coalescing: Coalescing = NO_COALESCING) -> None:
        self._coalescing = coalescing
        self._window_start_us = self._message_count = self._charged_bytes = 0
        """Start of the present window, the number of its messages, and the bytes that Linux charged for them."""
        self._has_slept = False
        """True if the input may have taken a nap in the present window."""
        self._messages_per_us = self._bytes_per_us = 0.0
        """Rates of the last window."""
        self._awake_end_us = 0
        self._awake_messages_per_us = self._awake_bytes_per_us = 0.0
        """Rates of the last window without a nap, which ended at `_awake_end_us`."""

    def add(self, message_count: int, size: int) -> None:
        """Count received messages; `size` is the sum of their sizes in bytes."""
        self._message_count += message_count
        self._charged_bytes += message_count * OVERHEAD_BYTES + 2 * size

    def nap(self, now_ms: int, until_ms: int, due_ms: int | None) -> None:
        """Take a nap if it saves CPU; it ends at `until_ms` or `due_ms` at the latest.  `due_ms` may be None."""
        left_ms = (until_ms if due_ms is None else min(until_ms, due_ms)) - now_ms
        if nap_us := self.nap_us(time.monotonic_ns() // 1000, left_ms * 1000):
            time.sleep(nap_us / 1_000_000)

    def nap_us(self, now_us: int, left_us: int) -> int:
        """Return the length of the nap to take now that the socket's queue is empty; 0 = no nap.

        The input wakes up in `left_us` in any case, so a nap that would last longer ends then.
        """
        if now_us - self._window_start_us >= WINDOW_US:
            self._end_window(now_us)
        if now_us - self._awake_end_us > AWAKE_INTERVAL_US:
            return 0  # a window without naps is due
        nap_us = self._longest_nap_us()
        if min(nap_us, left_us) < MIN_NAP_US or nap_us * self._messages_per_us < MIN_MESSAGES:
            return 0
        self._has_slept = True
        return min(int(nap_us), left_us)

    def _longest_nap_us(self) -> float:
        """Return the longest nap within the limits.

        The expected rate is the rate of the last window, or of the last window without a nap if that rate is higher.
        """
        messages_per_us = max(self._messages_per_us, self._awake_messages_per_us)
        bytes_per_us = max(self._bytes_per_us, self._awake_bytes_per_us)
        nap_us = float(self._coalescing.max_nap_us)
        if nap_us * messages_per_us > self._coalescing.max_messages:
            nap_us = self._coalescing.max_messages / messages_per_us
        if nap_us * bytes_per_us > self._coalescing.max_bytes:
            nap_us = self._coalescing.max_bytes / bytes_per_us
        return nap_us

    def _end_window(self, now_us: int) -> None:
        elapsed_us = now_us - self._window_start_us
        self._messages_per_us, self._bytes_per_us = self._message_count / elapsed_us, self._charged_bytes / elapsed_us
        if not self._has_slept:
            self._awake_messages_per_us, self._awake_bytes_per_us = self._messages_per_us, self._bytes_per_us
            self._awake_end_us = now_us
        self._window_start_us, self._message_count, self._charged_bytes, self._has_slept = now_us, 0, 0, False
