"""The control messages between the supervisor and a process, and the pipe that carries them.

The pipe is a `multiprocessing` pipe. Its end-of-file tells a process that the supervisor is dead.
"""

# No `from __future__ import annotations` here: msgspec resolves the annotations at run time.

from multiprocessing.connection import Connection
from select import select
from typing import Final

import msgspec

from bruce_mp.config.model import Config

__all__ = [
    "MAX_MESSAGE_BYTES",
    "AcceptCluster",
    "ActiveConfig",
    "Begin",
    "Broker",
    "ConfigApplied",
    "Control",
    "ControlMessage",
    "DebugTopics",
    "Dispatchers",
    "Drain",
    "Loaded",
    "NewConfig",
    "PeerDied",
    "Ready",
    "RefreshMetadata",
    "ReloadOutcome",
    "ReloadRequest",
    "Stop",
]


class Broker(msgspec.Struct, frozen=True):
    """A broker's id, host and port from the metadata."""

    node: int
    host: str
    port: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process, first message: the predecessor has ended; start working."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process has imported its modules and waits for Begin."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process is initialized and works."""


class Dispatchers(msgspec.Struct, frozen=True, tag=True):
    """Router to supervisor: the required dispatchers by slot; all others have nothing left to send."""

    wanted: dict[int, Broker]


class PeerDied(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to router: a process died and was restarted; sweep the slab for its records."""

    name: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: send all held messages now; no new work follows.

    With `stays_open`, the next daemon keeps the datagram socket. The datagram input then receives only the messages
    that wait there now.
    """

    stays_open: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: exit now; the slab keeps the messages that the process holds."""


class RefreshMetadata(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router: refresh the metadata now."""


class AcceptCluster(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router: send the held messages to this cluster."""

    cluster_id: str


class DebugTopics(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router and dispatchers: copy the messages of these topics, and of no others.

    While topics are chosen, the supervisor repeats the message to each process that starts, except inputs.
    """

    topics: tuple[bytes, ...] = ()
    all: bool = False

    @property
    def has_topics(self) -> bool:
        return self.all or bool(self.topics)

    def covers(self, topic: bytes) -> bool:
        return self.all or topic in self.topics


class NewConfig(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: apply this configuration; the process answers ConfigApplied with its number."""

    number: int
    config: Config


class ConfigApplied(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process has applied the configuration with this number."""

    number: int


class ReloadRequest(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor: reload the configuration; with `only_check`, only report the effect of a reload."""

    number: int
    only_check: bool


class ReloadOutcome(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: the result of the reload request with this number."""

    number: int
    accepted: bool
    text: str


class ActiveConfig(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: source and age of the active configuration, and the result of the last reload.

    `reloads` counts the accepted reloads. `refused` is the reason why the last reload was refused, or empty. Times are
    in ms since the epoch.
    """

    path: str
    since_ms: int
    reloads: int = 0
    refused: str = ""
    refused_ms: int = 0


ControlMessage = (
    Begin
    | Loaded
    | Ready
    | Dispatchers
    | PeerDied
    | Drain
    | Stop
    | RefreshMetadata
    | AcceptCluster
    | DebugTopics
    | NewConfig
    | ConfigApplied
    | ReloadRequest
    | ReloadOutcome
    | ActiveConfig
)
MAX_MESSAGE_BYTES: Final = 128 << 10
"""Size limit of a control message, which a reload checks, so that `Control.send` cannot block: a pipe that `select`
reports writable has room for this many bytes."""

_DECODER: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


class Control:
    """One end of the control pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """Return the descriptor of the pipe, for a poller."""
        return self._connection.fileno()

    def send(self, message: ControlMessage) -> None:
        """Send a message without blocking.

        The message is lost if the peer has exited, which the peer's end-of-file reveals. It is also lost if the peer
        hangs with hundreds of unread messages, because the supervisor must not block with it.
        """
        if not select([], [self._connection], [], 0)[1]:
            return
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            return

    def receive(self) -> ControlMessage | None:
        """Wait for the next message and return it, or None if the peer has exited."""
        try:
            message: ControlMessage = _DECODER.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return message
