"""The state that a worker keeps of a stream client: unprocessed bytes, flush groups, open attempt, connection.

A *flush group* is the messages of a connection between two barriers, which are requests for the outcome of messages.
"""

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
    """The counters of a kind of stream connection.

    `reads` counts all reads of sockets, and `got_data` only the reads that returned data.
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

    `unprocessed` has the received bytes that are not admitted yet.  If `is_paused` is True, these begin with a whole
    message, which waits for room, for a stuck topic, for a spill file or for the next interval of the user's quota.
    Otherwise these are the beginning of a message of `full_size` bytes; 0 = the size is not known yet.
    """

    kind: StreamKind
    flush_group: FlushGroup
    peer: PeerCredentials | None = None
    user: int = TCP_USER
    """User id of a UNIX client, for the quota; all TCP clients share `TCP_USER`."""
    origin: int | str = TCP_USER
    """User id of a UNIX client, or address of a TCP client, for the limits on connections and memory."""
    unprocessed: bytearray = field(default_factory=bytearray)
    full_size: int = 0
    is_paused: bool = False
    paused_until_ms: int = 0
    """Time of the next retry of a paused client; 0 = at the worker's next retry for room, a few ms later."""
    stuck_topic: bytes = b""
    """If the first message of `unprocessed` waits because its topic is over its share of the slab: this topic."""
    postponed: bytearray = field(default_factory=bytearray)
    """Messages of stuck topics that the lanes refused; the worker then puts them before `unprocessed`."""
    precounted_count: int = 0
    """Number of messages at the beginning of `unprocessed` that the user's quota counts already."""
    must_close: bool = False
    """True if the worker must close the connection: the data is malformed, or the daemon ended the attempt."""
    earlier_groups: list[FlushGroup] = field(default_factory=list)
    """Flush groups before `flush_group`; `finished_totals` includes still earlier ones."""
    attempt: Attempt | None = None
    keeps_timestamps: bool = False
    """True if the client's last attempt asked to keep timestamps.  The policy "arrival" still replaces them."""
    last_spill_file: SpillFile | None = None
    """The spill file of the client's last completed attempt; later messages must not overtake its messages."""
    final_frame: bytes = b""
    """A frame that the worker sends before it closes the connection: the reason for the attempt's end."""
    finished_totals: FlushGroup = field(default_factory=lambda: FlushGroup(0))
    """Sums of the counts of all flush groups before `earlier_groups`."""

    def pause(self, until_ms: int = 0) -> None:
        """Let the messages in `unprocessed` wait for a retry at `until_ms`; 0 is as in `paused_until_ms`."""
        self.is_paused, self.full_size, self.paused_until_ms = True, 0, until_ms


@dataclass(slots=True, eq=False)
class Connection:
    """A client and its socket.

    `outgoing` has unsent answers.  The worker still sends them after the client has shut down its sending side.

    If `is_closing` is True, the worker does not read the socket, and closes it once all answers are sent.  If
    `awaits_grant` is True, the worker does not read the socket until the client's message gets a grant of memory
    (`unfinished_limits.py`).
    """

    socket: socket.socket
    client: StreamClientState
    outgoing: bytearray = field(default_factory=bytearray)
    is_closing: bool = False
    awaits_grant: bool = False

    @property
    def events(self) -> int:
        """Return the events for which epoll should wait."""
        read_event = 0 if self.is_closing or self.awaits_grant else select.EPOLLIN
        return read_event | (select.EPOLLOUT if self.outgoing else 0)

    def send_final_frame(self) -> None:
        """Send the unsent answers and `final_frame`, as far as the socket takes them without waiting."""
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
