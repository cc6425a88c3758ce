"""Limits for the sleep of the datagram input between two receives (receive coalescing).

A wake-up costs more CPU than receiving a message.  While messages come fast, the input sleeps briefly and then receives
several.  Clients' messages wait in the kernel during that time, so the sleep has limits.  The expected messages must
not fill the queue, nor the send buffer of a client, where a message counts until it is received.  No message may be
noticeably later.  A client that reduces its buffer a lot blocks, or gets EAGAIN, sooner than without naps.

Separate because the limits depend on the machine and the configuration, not on the process that sleeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.input.linger import shortest_linger_ms
from bruce_mp.kernels import NO_COALESCING, Coalescing

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["LATER_BY", "coalescing_for", "send_room"]

LONGEST_US: Final = 2000
LATER_BY: Final = 16
"""The longest delay of a message is the shortest linger divided by this number."""
ROOM: Final = 4
"""Expected messages may take a queue or send buffer divided by this number; the rest is for bursts."""
SHORT_QUEUE: Final = 128
"""In a shorter queue the timer costs as much as a nap saves."""
SEND_BUFFER: Final = 212_992
"""Linux' default send buffer in bytes, used if the setting cannot be read."""
SEND_BUFFER_SETTING: Final = Path("/proc/sys/net/core/wmem_default")


def coalescing_for(config: Config, queue: int) -> Coalescing:
    """Return naps for a socket with a queue of `queue` datagrams; 0 = unknown length."""
    if queue < SHORT_QUEUE:
        return NO_COALESCING
    longest_us = min(LONGEST_US, shortest_linger_ms(config) * 1000 // LATER_BY)
    return Coalescing(longest_us, queue // ROOM, send_room())


def send_room() -> int:
    """Return the bytes of a client's send buffer that expected messages may take."""
    return min(SEND_BUFFER, _send_buffer()) // ROOM


def _send_buffer() -> int:
    """Return the system's present default for send buffers."""
    try:
        return int(SEND_BUFFER_SETTING.read_text("ascii"))
    except (OSError, ValueError):
        return SEND_BUFFER
