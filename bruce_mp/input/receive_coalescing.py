"""Receive coalescing: the limits of an input's nap between two receives.

A wake-up costs more CPU than receiving a message.  While messages come fast, an input naps briefly and then receives
several at once.  Messages wait in the kernel during a nap, so a nap has limits.  The expected messages must not fill
the socket's queue, nor a client's send buffer, which the kernel charges for a message until it is received.  A nap must
not delay a message noticeably.  A client that sets a much smaller send buffer blocks, or gets EAGAIN, sooner than
without naps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.kernels import NO_COALESCING, Coalescing
from bruce_mp.pipeline.run_linger import shortest_linger_ms

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["coalescing_for", "stream_coalescing_for"]

MAX_NAP_US: Final = 5000
MAX_STREAM_NAP_US: Final = 6000
"""Longest naps of the datagram input and of a stream worker; see docs/decisions/receive-coalescing.md."""
UNBATCHED_NAP_US: Final = 2000
"""Longest nap of a stream worker if any topic is not batched, so that its messages reach the broker within 5 ms."""
LINGER_DIVISOR: Final = 16
"""The longest delay of a message by a nap is the shortest linger divided by this number."""
QUEUE_DIVISOR: Final = 4
"""Expected messages may take a queue or send buffer divided by this number; the rest is for bursts."""
MIN_QUEUE_LENGTH: Final = 128
"""Shortest queue for naps: a shorter one has no room for the burst of a sender that does not block."""
SEND_BUFFER: Final = 212_992
"""Linux' default send buffer in bytes, used if the setting is larger or cannot be read."""
SEND_BUFFER_SETTING: Final = Path("/proc/sys/net/core/wmem_default")
_ANY_NUMBER: Final = 1 << 30
"""No limit of messages in a nap: the nap of streams is bounded by bytes."""


def coalescing_for(config: Config, queue_length: int) -> Coalescing:
    """Return the limits for a socket with a queue of this many datagrams; 0 = unknown."""
    if queue_length < MIN_QUEUE_LENGTH:
        return NO_COALESCING
    max_nap_us = min(MAX_NAP_US, shortest_linger_ms(config) * 1000 // LINGER_DIVISOR)
    return Coalescing(max_nap_us, queue_length // QUEUE_DIVISOR, _send_buffer_limit())


def stream_coalescing_for(config: Config) -> Coalescing:
    shortest_ms = shortest_linger_ms(config)
    max_nap_us = min(MAX_STREAM_NAP_US, shortest_ms * 1000 // LINGER_DIVISOR) if shortest_ms else UNBATCHED_NAP_US
    # Twice the room of datagrams: a full send buffer makes a stream's client wait, and refuses no message.
    return Coalescing(max_nap_us, _ANY_NUMBER, 2 * _send_buffer_limit())


def _send_buffer_limit() -> int:
    """Return the bytes of a client's send buffer that the expected messages may fill."""
    try:
        default = int(SEND_BUFFER_SETTING.read_text("ascii"))
    except (OSError, ValueError):
        default = SEND_BUFFER
    return min(SEND_BUFFER, default) // QUEUE_DIVISOR
