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
    """A kind of stream connection, as the counters that it raises."""

    forwarded: Counter
    clean: Counter
    unclean: Counter
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

    `unprocessed` has the start of a message, whose whole length in bytes is `wanted` (0 until it is known), or the
    messages of a paused client.
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
    """A whole message begins `unprocessed` and waits for room, topic, spill file or the quota's next interval."""
    paused_until_ms: int = 0
    """Time of the next retry, such as the start of that interval; 0 = soon (for room, or at first for a topic)."""
    stuck_topic: bytes = b""
    """The topic of the first message of `unprocessed`, if it waits because the topic is over its share of the slab."""
    postponed: bytearray = field(default_factory=bytearray)
    """Messages of stuck topics that were removed from a batch; they precede `unprocessed`."""
    counted_in_quota: int = 0
    """Number of messages at the beginning of `unprocessed` that the user's quota counts already."""
    must_close: bool = False
    """The client sent malformed data, or its attempt was ended: the worker closes the connection."""
    unfinished_groups: list[FlushGroup] = field(default_factory=list)
    """Earlier flush groups, from the first one with outstanding messages on."""
    attempt: Attempt | None = None
    keeps_timestamps: bool = False
    """True if the client's timestamps are kept, unless the policy is "arrival"."""
    completed_spill: SpillFile | None = None
    """The spill file of the client's last attempt, which later messages must not overtake."""
    final_frame: bytes = b""
    """The bytes that the worker sends before it closes the connection."""
    finished_totals: FlushGroup = field(default_factory=lambda: FlushGroup(0))
    """Sums over all flush groups before `unfinished_groups`."""

    def block(self, until_ms: int = 0) -> None:
        """Let the messages in `unprocessed` wait for the retry at `until_ms`; 0 = soon, as in `paused_until_ms`."""
        self.is_blocked, self.wanted, self.paused_until_ms = True, 0, until_ms


@dataclass(slots=True, eq=False)
class Connection:
    """A client and its socket.

    `outgoing` holds unsent answers.  The daemon still writes them after the client has shut down its sending side.
    While `is_waiting`, the worker does not read the socket, because unfinished messages have reached the worker's limit
    (`unfinished_limits.py`).
    """

    socket: socket.socket
    client: StreamClientState
    outgoing: bytearray = field(default_factory=bytearray)
    is_closing: bool = False
    is_waiting: bool = False

    @property
    def events(self) -> int:
        return (0 if self.is_closing or self.is_waiting else select.EPOLLIN) | (select.EPOLLOUT if self.outgoing else 0)

    def send_final_frame(self) -> None:
        """Send the unsent answers and the frame with the reason for the attempt's end, without waiting for room."""
        self.outgoing += self.client.final_frame
        self.client.final_frame = b""
        if self.outgoing:
            with suppress(OSError):
                sent = self.socket.send(self.outgoing, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self.outgoing[:sent]


def has_input(peer_socket: socket.socket) -> bool:
    """Return True if the kernel has bytes of the connection, or its end."""
    poll = select.poll()
    poll.register(peer_socket, select.POLLIN)
    return bool(poll.poll(0))
