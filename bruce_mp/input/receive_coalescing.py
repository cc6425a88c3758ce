"""Receive coalescing: the limits of an input's nap between two receives.

A wake-up costs more CPU time than receiving a message.  While messages come fast, an input naps (sleeps for a few
milliseconds) and then receives several messages at once.  Messages wait in the kernel during a nap, so a nap has three
limits:

* The messages that are expected during a nap must not fill the socket's queue.
* These messages must not fill the send buffer of a client, which a message occupies until the input receives it.  The
  limit suits send buffers of Linux' default size.  A client with a much smaller one blocks, or gets EAGAIN, sooner than
  it would without naps.
* A nap must not delay a message noticeably.
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
MAX_STREAM_NAP_US: Final = 20_000
"""Longest naps of the datagram input and of a stream worker; see docs/decisions/receive-coalescing.md."""
UNBATCHED_NAP_US: Final = 2000
"""Longest nap of a stream worker if a topic is not batched, so that its messages reach the broker within 5 ms."""
LINGER_DIVISOR: Final = 10
"""A nap lasts at most 1/LINGER_DIVISOR of the shortest linger of a topic."""
QUEUE_DIVISOR: Final = 4
"""The messages expected in a nap may fill 1/QUEUE_DIVISOR of a queue or send buffer; the rest is for bursts."""
MIN_QUEUE_LENGTH: Final = 128
"""If the queue is shorter, the input never naps: during a nap, the queue would overflow in a burst of messages."""
LINUX_SEND_BUFFER: Final = 212_992
"""Linux' usual default size of a send buffer in bytes, used if the host's setting is larger or cannot be read."""
SEND_BUFFER_SETTING: Final = Path("/proc/sys/net/core/wmem_default")
_UNLIMITED_MESSAGES: Final = 1 << 30
"""In effect no limit: a stream connection has no queue of messages, only a limit on bytes."""


def coalescing_for(config: Config, queue_length: int) -> Coalescing:
    """Return the limits for a socket with a queue of `queue_length` datagrams; 0 (unknown) allows no naps."""
    if queue_length < MIN_QUEUE_LENGTH:
        return NO_COALESCING
    max_nap_us = min(MAX_NAP_US, shortest_linger_ms(config) * 1000 // LINGER_DIVISOR)
    return Coalescing(max_nap_us, queue_length // QUEUE_DIVISOR, _send_buffer_limit())


def stream_coalescing_for(config: Config) -> Coalescing:
    shortest_ms = shortest_linger_ms(config)
    max_nap_us = min(MAX_STREAM_NAP_US, shortest_ms * 1000 // LINGER_DIVISOR) if shortest_ms else UNBATCHED_NAP_US
    # Twice the limit for datagrams: if its send buffer is full, a stream client only waits, but a sender of datagrams
    # may get an error.
    return Coalescing(max_nap_us, _UNLIMITED_MESSAGES, 2 * _send_buffer_limit())


def _send_buffer_limit() -> int:
    """Return how many bytes of a client's send buffer the messages expected in a nap may fill."""
    try:
        host_default = int(SEND_BUFFER_SETTING.read_text("ascii"))
    except (OSError, ValueError):
        host_default = LINUX_SEND_BUFFER
    return min(LINUX_SEND_BUFFER, host_default) // QUEUE_DIVISOR
