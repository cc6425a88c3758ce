"""The rate of arriving messages, and the length of a nap before the next receive.

A wake-up costs the datagram input more CPU than receiving a message.  After a nap it receives several at once.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

__all__ = ["NO_COALESCING", "ArrivalRate", "Coalescing"]

WINDOW_US: Final = 2000
"""Minimum length of a window over which the rate is measured."""
AWAKE_EVERY_US: Final = 500_000
"""Once in this time a window passes without naps, because a sender that blocks during naps looks slow."""
LEAST_MESSAGES: Final = 16
"""With fewer messages a nap costs what it saves: a timer has to be set, and wakes the input."""
LEAST_US: Final = 400
HEAD_BYTES: Final = 768
"""Bytes that the kernel charges a sender's buffer for a datagram, beside up to twice its length."""


class Coalescing(NamedTuple):
    """The limits of a nap.

    A nap has at most `longest_us` microseconds, with at most `messages` expected messages, for which the kernel charges
    at most `room` bytes.  Within the limits neither queue nor send buffer is full before the next receive.
    """

    longest_us: int
    messages: int
    room: int


NO_COALESCING: Final = Coalescing(0, 0, 0)


class ArrivalRate:
    """The rate of one socket's messages.  Times are in microseconds on a steady clock."""

    least_messages: ClassVar = LEAST_MESSAGES

    def __init__(self, coalescing: Coalescing = NO_COALESCING) -> None:
        self._coalescing = coalescing
        self._since_us = self._seen = self._weight = 0
        """Of the present window: its start, its messages, and the bytes that the kernel charged for them."""
        self._has_slept = False
        """True after a nap in the present window."""
        self._messages_per_us = self._bytes_per_us = 0.0
        """Rates of the last window."""
        self._awake_us = 0
        self._awake_messages_per_us = self._awake_bytes_per_us = 0.0
        """Rates of the last window without a nap, which ended at `_awake_us`."""

    def add(self, messages: int, size: int) -> None:
        """Count received messages of `size` bytes in all."""
        self._seen += messages
        self._weight += messages * HEAD_BYTES + 2 * size

    def coalescing_us(self, now_us: int) -> int:
        """Return the length of a nap for an empty queue; 0 = no nap."""
        if now_us - self._since_us >= WINDOW_US:
            self._end_window(now_us)
        if now_us - self._awake_us > AWAKE_EVERY_US:
            return 0
        coalescing_us = self._longest_us()
        if coalescing_us < LEAST_US or coalescing_us * self._messages_per_us < self.least_messages:
            return 0
        self._has_slept = True
        return int(coalescing_us)

    def _longest_us(self) -> float:
        """Return the longest nap within the limits."""
        messages_per_us = max(self._messages_per_us, self._awake_messages_per_us)
        bytes_per_us = max(self._bytes_per_us, self._awake_bytes_per_us)
        coalescing_us = float(self._coalescing.longest_us)
        if coalescing_us * messages_per_us > self._coalescing.messages:
            coalescing_us = self._coalescing.messages / messages_per_us
        if coalescing_us * bytes_per_us > self._coalescing.room:
            coalescing_us = self._coalescing.room / bytes_per_us
        return coalescing_us

    def _end_window(self, now_us: int) -> None:
        elapsed_us = now_us - self._since_us
        self._messages_per_us, self._bytes_per_us = self._seen / elapsed_us, self._weight / elapsed_us
        if not self._has_slept:
            self._awake_messages_per_us, self._awake_bytes_per_us = self._messages_per_us, self._bytes_per_us
            self._awake_us = now_us
        self._since_us, self._seen, self._weight, self._has_slept = now_us, 0, 0, False
