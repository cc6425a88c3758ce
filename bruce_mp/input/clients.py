"""A client on a stream connection, as the input knows it: what it sent of a message that is not whole yet, and counts.

A *section* is what a connection sends between two barriers.  Its messages carry its number in their arrival numbers, so
that their outcomes can be counted for it, whoever settles them.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason
    from bruce_mp.input.fences import Attempt
    from bruce_mp.slab.spill import SpillFile
    from bruce_mp.telemetry.discards import Peer

__all__ = ["TCP", "UNIX", "Client", "Kind", "Section"]


class Kind(NamedTuple):
    """A kind of stream: its counters."""

    forwarded: Counter
    clean: Counter
    unclean: Counter
    socket_error: Counter
    invalid_size: Counter
    too_large: Counter
    reads: Counter
    got_data: Counter


UNIX: Final = Kind(
    Counter.UnixStreamInputForwardMsg,
    Counter.UnixStreamInputCleanDisconnect,
    Counter.UnixStreamInputUncleanDisconnect,
    Counter.UnixStreamInputSocketError,
    Counter.UnixStreamInputInvalidSizeField,
    Counter.UnixStreamInputMsgBodyTooLarge,
    Counter.UnixStreamInputSocketRead,
    Counter.UnixStreamInputSocketGotData,
)
TCP: Final = Kind(
    Counter.TcpInputForwardMsg,
    Counter.TcpInputCleanDisconnect,
    Counter.TcpInputUncleanDisconnect,
    Counter.TcpInputSocketError,
    Counter.TcpInputInvalidSizeField,
    Counter.TcpInputMsgBodyTooLarge,
    Counter.TcpInputSocketRead,
    Counter.TcpInputSocketGotData,
)


@dataclass(slots=True, eq=False)
class Section:
    """Messages of one connection between two barriers, and what became of them."""

    number: int
    received: int = 0
    delivered: int = 0
    discards: Tally[DiscardReason] = field(default_factory=Tally)
    is_left: bool = False
    """The connection has ended, or has gone on to its next section."""

    @property
    def outstanding(self) -> int:
        """Messages without a final outcome."""
        return self.received - self.delivered - self.discards.total()

    def discard(self, reason: DiscardReason, count: int = 1) -> None:
        """Count messages that were received and are discarded."""
        self.discards[reason] += count


@dataclass(slots=True, eq=False)
class Client:
    """A connection.  `rest` is the beginning of a message of `wanted` bytes (0: not known yet), or what had no room."""

    kind: Kind
    section: Section
    peer: Peer | None = None
    user: int = TCP_USER
    """Whose quota counts."""
    rest: bytearray = field(default_factory=bytearray)
    wanted: int = 0
    is_blocked: bool = False
    """What `rest` begins with is whole, and waits for room, or for the next interval of a quota."""
    held_until_ms: int = 0
    """When that interval begins, or its stuck topic is looked at again; 0: it waits for room."""
    stuck_topic: bytes = b""
    """The topic of the first message of `rest`, if it waits because the topic holds its share of the slab."""
    postponed: bytearray = field(default_factory=bytearray)
    """Messages of such topics, taken out of a batch; they go before `rest`."""
    counted: int = 0
    """So many messages at the beginning of `rest` count in the user's quota already."""
    is_refused: bool = False
    """It sent what cannot be understood: nothing more is read from it."""
    earlier: list[Section] = field(default_factory=list)
    """Sections before the present one that are not finished, or stand behind such a one."""
    attempt: Attempt | None = None
    """The fenced attempt that is open."""
    keeps_timestamps: bool = False
    """The client insists on its timestamps, however far from the arrival of its messages."""
    released: SpillFile | None = None
    """What its last attempt spilled: what it sends next must not overtake that."""
    farewell: bytes = b""
    """What it is told before its connection is closed."""
    past: Section = field(default_factory=lambda: Section(0))
    """All sections before those together."""
