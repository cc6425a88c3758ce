"""How long the datagram input may sleep between two receives.

To be woken costs it more than to take a message in.  While messages come fast it sleeps a little before it looks for
the next, and finds several.  The clients' messages wait in the kernel meanwhile, so this has limits: what is expected
fills neither the queue, which has to be long enough, nor the send buffer of a client, in which a message counts until
it is received; and no message is noticeably later for it.  A client that has made its buffer much smaller waits, or
gets EAGAIN, sooner than without.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.input.linger import shortest_linger_ms
from bruce_mp.kernels import NO_NAPS, Naps

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["naps_for"]

LONGEST_US: Final = 2000
LATER_BY: Final = 16
"""A message may be later by so small a part of the time for which its run lingers at least."""
ROOM: Final = 4
"""So small a part of a queue, or of a send buffer, may be taken by what is expected: bursts have the rest."""
SHORT_QUEUE: Final = 128
"""In a shorter one so few may be expected that the timer costs what it saves."""
SEND_BUFFER: Final = 212_992
"""What Linux grants a socket that asks for nothing else, in bytes, if nobody has set it otherwise."""
SEND_BUFFER_SETTING: Final = Path("/proc/sys/net/core/wmem_default")


def naps_for(config: Config, queue: int) -> Naps:
    """Naps for a socket at which `queue` datagrams may wait; 0: nobody knows how many."""
    if queue < SHORT_QUEUE:
        return NO_NAPS
    longest_us = min(LONGEST_US, shortest_linger_ms(config) * 1000 // LATER_BY)
    return Naps(longest_us, queue // ROOM, min(SEND_BUFFER, _send_buffer()) // ROOM)


def _send_buffer() -> int:
    """What Linux grants now."""
    try:
        return int(SEND_BUFFER_SETTING.read_text("ascii"))
    except (OSError, ValueError):
        return SEND_BUFFER
