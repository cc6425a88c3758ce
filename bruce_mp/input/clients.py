"""The input's state of a client on a stream connection: its incomplete message, its counts and its attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.input.sections import ConnectionSection
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.discards.reporter import PeerCredentials
    from bruce_mp.input.fenced_attempts import Attempt
    from bruce_mp.slab.spill import SpillFile

__all__ = ["TCP", "UNIX", "StreamClientState", "StreamKind"]


class StreamKind(NamedTuple):
    """The counters of a kind of stream."""

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
    """A connection's client.

    `unprocessed` has the start of a message of `wanted` bytes (0: length not known yet), or messages without room.
    """

    kind: StreamKind
    section: ConnectionSection
    peer: PeerCredentials | None = None
    user: int = TCP_USER
    """The user whose quota applies."""
    unprocessed: bytearray = field(default_factory=bytearray)
    wanted: int = 0
    is_blocked: bool = False
    """A whole message at the beginning of `unprocessed` waits for room, or for the next interval of a quota."""
    paused_until_ms: int = 0
    """Begin of that interval, or of the next check of its stuck topic; 0 if the message waits for room."""
    stuck_topic: bytes = b""
    """The topic of the first message of `unprocessed`, if it waits because the topic holds its share of the slab."""
    postponed: bytearray = field(default_factory=bytearray)
    """Messages of such topics that were removed from a batch; they precede `unprocessed`."""
    counted: int = 0
    """Number of messages at the beginning of `unprocessed` that the user's quota counts already."""
    is_refused: bool = False
    """The client sent malformed data, and the worker reads no more from it."""
    unfinished_sections: list[ConnectionSection] = field(default_factory=list)
    """Sections before the present one, from the first unfinished one on."""
    attempt: Attempt | None = None
    """The open fenced attempt."""
    keeps_timestamps: bool = False
    """The client's timestamps stay, at any distance from the arrival of its messages."""
    released: SpillFile | None = None
    """The spill file of the client's last attempt, which later messages must not overtake."""
    farewell: bytes = b""
    """The bytes that the worker sends before it closes the connection."""
    finished_totals: ConnectionSection = field(default_factory=lambda: ConnectionSection(0))
    """Sum of all finished sections before `unfinished_sections`."""
