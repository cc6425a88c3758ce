"""Receive coalescing of a stream worker: naps between two wake-ups, so that one wake-up reads several small writes.

A wake-up costs a worker more CPU than receiving dozens of messages.  While clients make small writes at a high rate,
the worker naps briefly after each read.  As in `receive_coalescing`, the expected messages must not fill a client's
send buffer, and a nap must not delay a message noticeably.  If any topic is not batched, naps are shorter.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bruce_mp.input.linger import shortest_linger_ms
from bruce_mp.input.receive_coalescing import LINGER_DIVISOR, send_buffer_limit
from bruce_mp.kernels import ArrivalRate, Coalescing

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["StreamRate", "stream_coalescing_for"]

LONGEST_US: Final = 6000
UNBATCHED_US: Final = 2000
"""Longest nap if any topic is not batched, so that its messages reach the broker within 5 ms."""
_UNLIMITED: Final = 1 << 30


class StreamRate(ArrivalRate):
    """The rate of the messages of all connections of a worker."""

    def nap(self) -> None:
        """Sleep if that saves CPU; the worker calls this after each wake-up."""
        nap_us = self.nap_us(time.monotonic_ns() // 1000)
        if nap_us:
            time.sleep(nap_us / 1e6)


def stream_coalescing_for(config: Config) -> Coalescing:
    """Return the limits of a worker's naps for a configuration."""
    shortest_ms = shortest_linger_ms(config)
    longest_us = min(LONGEST_US, shortest_ms * 1000 // LINGER_DIVISOR) if shortest_ms else UNBATCHED_US
    # Twice the room of datagrams: a full send buffer makes a stream's client wait, and refuses no message.
    return Coalescing(longest_us, _UNLIMITED, 2 * send_buffer_limit())
