"""Naps of a stream worker between two wake-ups, so that one wake-up reads several small writes.

A wake-up costs a worker more CPU than receiving dozens of messages.  While clients write small pieces fast, the worker
sleeps briefly after it has read what there was.  The limits are those of `receive_coalescing`: clients' messages wait
in their send buffers, which must not fill, and no message may be noticeably later.  Where some topic is not batched,
the nap is shorter.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Final

from bruce_mp.input.linger import shortest_linger_ms
from bruce_mp.input.receive_coalescing import LATER_BY, send_room
from bruce_mp.kernels.pure.arrival_rate import ArrivalRate, Coalescing

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["StreamRate", "stream_coalescing_for"]

LONGEST_US: Final = 4000
UNBATCHED_US: Final = 2000
"""The longest nap where a topic is not batched: its messages take less than 5 ms in all."""
_ANY_NUMBER: Final = 1 << 30


class StreamRate(ArrivalRate):
    """The rate of the messages of all connections of a worker."""

    least_messages: ClassVar = 3

    def nap(self) -> None:
        """Sleep if that saves CPU; call it after each wake-up."""
        nap_us = self.coalescing_us(time.monotonic_ns() // 1000)
        if nap_us:
            time.sleep(nap_us / 1e6)


def stream_coalescing_for(config: Config) -> Coalescing:
    """Return the limits of naps."""
    shortest_ms = shortest_linger_ms(config)
    longest_us = min(LONGEST_US, shortest_ms * 1000 // LATER_BY) if shortest_ms else UNBATCHED_US
    return Coalescing(longest_us, _ANY_NUMBER, send_room())
