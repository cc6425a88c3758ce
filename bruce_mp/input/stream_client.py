"""A stream client as its worker sees it: unprocessed bytes, flush groups, the open attempt, and its connection."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.input.flush_groups import FlushGroup
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.discards.reporter import PeerCredentials
    from bruce_mp.input.fenced_attempts import Attempt
    from bruce_mp.slab.spill import SpillFile

__all__ = ["TCP", "UNIX", "Connection", "StreamClientState", "StreamKind", "has_input"]


class StreamKind(NamedTuple):
    """A kind of stream connection: the counters that its connections raise.

    `reads` counts the reads of sockets, and `got_data` those reads that returned data.
    """

    forwarded: Counter
    clean_disconnect: Counter
    unclean_disconnect: Counter
    socket_error: Counter
    invalid_size: Counter
    too_large: Counter
    reads: Counter
    got_data: Counter


UNIX: Final = StreamKind(
    Counter.UnixStreamInputForwardMsg,
    Counter.UnixStreamInputCleanDisconnect,
    Counter.UnixStreamInputUncleanDisconnect,
    Counter.UnixStreamInputSocketError,
    Counter.UnixStreamInputInvalidSizeField,
    Counter.UnixStreamInputMsgBodyTooLarge,
    Counter.UnixStreamInputSocketRead,
    Counter.UnixStreamInputSocketGotData,
)
TCP: Final = StreamKind(
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
class StreamClientState:
    """The state of one client.

    `unprocessed` has the received bytes that are not admitted yet.  They are the messages of a paused client, or the
    beginning of an incomplete message.  `wanted` is the whole length of that message in bytes, 0 until it is known.
    """

    kind: StreamKind
    flush_group: FlushGroup
    peer: PeerCredentials | None = None
    user: int = TCP_USER
    """User id for the quota."""
    origin: int | str = TCP_USER
    """The user of a UNIX connection, or the address of a TCP client, for the limits of connections and memory."""
    unprocessed: bytearray = field(default_factory=bytearray)
    wanted: int = 0
    is_blocked: bool = False
    """True if `unprocessed` begins with a whole message that must wait.

    It waits for room, for a stuck topic, for a spill file or for the next interval of the user's quota.
    """
    paused_until_ms: int = 0
    """Time of the next retry; 0 = soon, if the client waits for room or has just begun to wait for a topic."""
    stuck_topic: bytes = b""
    """The topic of the first message of `unprocessed`, if it waits because the topic is over its share of the slab."""
    postponed: bytearray = field(default_factory=bytearray)
    """Messages of stuck topics that were removed from a batch; they precede `unprocessed`."""
    counted_in_quota: int = 0
    """Number of messages at the beginning of `unprocessed` that the user's quota counts already."""
    must_close: bool = False
    """True if the client sent malformed data, or if the daemon ended its attempt: the worker closes the connection."""
    unfinished_groups: list[FlushGroup] = field(default_factory=list)
    """Earlier flush groups, beginning with the first that has messages without outcomes."""
    attempt: Attempt | None = None
    keeps_timestamps: bool = False
    """True if the client's timestamps are kept, unless the policy is "arrival"."""
    completed_spill: SpillFile | None = None
    """The spill file of the client's last attempt, which later messages must not overtake."""
    final_frame: bytes = b""
    """The frame that tells the client why its attempt ended; the worker sends it before it closes the connection."""
    finished_totals: FlushGroup = field(default_factory=lambda: FlushGroup(0))
    """Sums over all flush groups before `unfinished_groups`."""

    def block(self, until_ms: int = 0) -> None:
        """Let the messages in `unprocessed` wait for a retry at `until_ms`; 0 = soon, as in `paused_until_ms`."""
        self.is_blocked, self.wanted, self.paused_until_ms = True, 0, until_ms


@dataclass(slots=True, eq=False)
class Connection:
    """A client and its socket.

    `outgoing` holds unsent answers.  The daemon still writes them after the client has shut down its sending side.
    With `is_closing`, the worker does not read the socket, and closes it once all answers are sent.  With `is_waiting`,
    the worker does not read the socket until the client's message gets a grant of memory (`unfinished_limits.py`).
    """

    socket: socket.socket
    client: StreamClientState
    outgoing: bytearray = field(default_factory=bytearray)
    is_closing: bool = False
    is_waiting: bool = False

    @property
    def events(self) -> int:
        """Return the events for which epoll should wait."""
        return (0 if self.is_closing or self.is_waiting else select.EPOLLIN) | (select.EPOLLOUT if self.outgoing else 0)

    def send_final_frame(self) -> None:
        """Send the unsent answers and `final_frame` as far as the socket takes them now."""
        self.outgoing += self.client.final_frame
        self.client.final_frame = b""
        if self.outgoing:
            with suppress(OSError):
                sent = self.socket.send(self.outgoing, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self.outgoing[:sent]


def has_input(peer_socket: socket.socket) -> bool:
    """Return True if a read would return at once, with bytes or with the end of the stream."""
    poll = select.poll()
    poll.register(peer_socket, select.POLLIN)
    return bool(poll.poll(0))
