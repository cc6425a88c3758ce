"""How fast messages come, and how long the datagram input may sleep for it before it receives again.

To be woken costs it more than to take a message in.  After a nap it finds several.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NO_NAPS", "Naps", "Pace"]

WINDOW_US: Final = 2000
"""The pace is that of so long at least."""
AWAKE_EVERY_US: Final = 500_000
"""Once in so long it stays awake for a window: a sender that has to wait for naps looks slower than it is."""
LEAST_MESSAGES: Final = 16
"""For fewer messages a nap costs what it saves: a timer has to be set, and wakes us up."""
LEAST_US: Final = 400
HEAD_BYTES: Final = 768
"""What the kernel counts of a datagram in its sender's buffer, beside up to twice its bytes."""


class Naps(NamedTuple):
    """The limits: `longest_us` microseconds, in which no more than `messages` are to be expected, for which the kernel
    counts no more than `room` bytes.  At that pace neither queue nor send buffer is full before somebody looks again.
    """

    longest_us: int
    messages: int
    room: int


NO_NAPS: Final = Naps(0, 0, 0)


class Pace:
    """Of the messages of one socket.  Times in microseconds on a steady clock."""

    def __init__(self, naps: Naps = NO_NAPS) -> None:
        self._naps = naps
        self._since_us = self._seen = self._weight = 0
        """Of the present window: its beginning, its messages, and what the kernel counted for them."""
        self._has_slept = False
        """In the present window."""
        self._messages_per_us = self._bytes_per_us = 0.0
        """In the last one."""
        self._awake_us = 0
        self._awake_messages_per_us = self._awake_bytes_per_us = 0.0
        """In the last one without a nap, which ended then."""

    def add(self, messages: int, size: int) -> None:
        """So many messages came, with so many bytes in all."""
        self._seen += messages
        self._weight += messages * HEAD_BYTES + 2 * size

    def nap_us(self, now_us: int) -> int:
        """How long to sleep when nothing waits; 0: not at all."""
        if now_us - self._since_us >= WINDOW_US:
            self._end_window(now_us)
        if now_us - self._awake_us > AWAKE_EVERY_US:
            return 0
        nap_us = self._longest_us()
        if nap_us < LEAST_US or nap_us * self._messages_per_us < LEAST_MESSAGES:
            return 0
        self._has_slept = True
        return int(nap_us)

    def _longest_us(self) -> float:
        """What the limits allow."""
        messages_per_us = max(self._messages_per_us, self._awake_messages_per_us)
        bytes_per_us = max(self._bytes_per_us, self._awake_bytes_per_us)
        nap_us = float(self._naps.longest_us)
        if nap_us * messages_per_us > self._naps.messages:
            nap_us = self._naps.messages / messages_per_us
        if nap_us * bytes_per_us > self._naps.room:
            nap_us = self._naps.room / bytes_per_us
        return nap_us

    def _end_window(self, now_us: int) -> None:
        elapsed_us = now_us - self._since_us
        self._messages_per_us, self._bytes_per_us = self._seen / elapsed_us, self._weight / elapsed_us
        if not self._has_slept:
            self._awake_messages_per_us, self._awake_bytes_per_us = self._messages_per_us, self._bytes_per_us
            self._awake_us = now_us
        self._since_us, self._seen, self._weight, self._has_slept = now_us, 0, 0, False
