"""The control messages between the supervisor and a process of the daemon, and the pipe that carries them.

Each process has a `multiprocessing` pipe to the supervisor. End-of-file on the pipe tells the process that the
supervisor is dead. The docstring of a message begins with the sender and the receivers. A message from "status to
supervisor to router" goes through two pipes: the supervisor forwards it.
"""

# No `from __future__ import annotations` here: msgspec resolves the annotations at run time.

import logging
from multiprocessing.connection import Connection
from select import POLLIN, poll, select
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
    """A broker from the cluster's metadata; `node` is its id."""

    node: int
    host: str
    port: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process, the first message: the process that this one replaces has ended, so begin to work."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process has imported its modules and waits for Begin."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process is initialized and has begun to work."""


class Dispatchers(msgspec.Struct, frozen=True, tag=True):
    """Router to supervisor: the brokers that need a dispatcher, by dispatcher slot.

    The supervisor starts missing dispatchers. It may end all others, because they have nothing left to send.
    """

    wanted: dict[int, Broker]


class PeerDied(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to router: the process `name` died and was restarted; search the slab for the records it held."""

    name: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process, at a shutdown: send all held messages now; no new work follows.

    `stays_open` means that the datagram socket stays open for the next daemon. The datagram input then receives only
    the messages that are in the socket's queue now, because new messages may arrive without end.
    """

    stays_open: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: exit now; the messages that the process holds stay in the slab."""


class RefreshMetadata(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router: fetch the cluster's metadata now."""


class AcceptCluster(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router: send the held messages to this cluster, not to their old one."""

    cluster_id: str


class DebugTopics(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router and dispatchers: copy messages to the debug files of the status process.

    Messages of `topics` are copied; if `all_topics` is True, messages of every topic. While at least one topic is
    chosen, the supervisor also sends this message to each process that it starts, except inputs.
    """

    topics: tuple[bytes, ...] = ()
    all_topics: bool = False

    @property
    def has_topics(self) -> bool:
        return self.all_topics or bool(self.topics)

    def covers(self, topic: bytes) -> bool:
        return self.all_topics or topic in self.topics


class NewConfig(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: apply this configuration, and answer with ConfigApplied and the same number."""

    number: int
    config: Config


class ConfigApplied(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: the process has applied the configuration of the NewConfig with this number."""

    number: int


class ReloadRequest(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor: reload the configuration; if `only_check` is True, only report what would change.

    The answer is a ReloadOutcome with the same number.
    """

    number: int
    only_check: bool


class ReloadOutcome(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: the result of the ReloadRequest with this number."""

    number: int
    accepted: bool
    text: str


class ActiveConfig(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: the configuration from the file `path` is active since `since_ms`.

    `reload_count` is the number of accepted reloads. If the last reload was refused, `refused` is the reason and
    `refused_ms` the time of the refusal; else `refused` is "". Times are in ms since the epoch.
    """

    path: str
    since_ms: int
    reload_count: int = 0
    refused: str = ""
    refused_ms: int = 0


class LostSocketFiles(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: the paths of socket files that are gone or were replaced; no program can connect there."""

    paths: tuple[str, ...]


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
    | LostSocketFiles
)
MAX_MESSAGE_BYTES: Final = 128 << 10
"""Size limit of a control message. A pipe that `select` reports writable has room for this many bytes, so
`Control.send` does not block. A reload checks the size of NewConfig, and shortens the texts for the status process."""

log = logging.getLogger(__name__)

_DECODER: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


class Control:
    """One end of the control pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poller = poll()
        self._poller.register(connection, POLLIN)

    @property
    def has_message(self) -> bool:
        """Return True if `receive` would not wait."""
        return bool(self._poller.poll(0))

    def fileno(self) -> int:
        """Return the descriptor of the pipe, for a poller."""
        return self._connection.fileno()

    def send(self, message: ControlMessage) -> None:
        """Send a message without blocking; the message may be lost.

        It is lost if the peer has exited; then `receive` returns None. It is also lost if the pipe is full: then the
        peer hangs and has not read hundreds of messages, and the supervisor must not wait for such a peer. A message
        above MAX_MESSAGE_BYTES, which no sender should make, is lost with an error in the log.
        """
        data = msgspec.msgpack.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            name = type(message).__name__
            log.error("A control message, %s, is lost: it has %d bytes; this is a bug.", name, len(data))
            return
        if not select([], [self._connection], [], 0)[1]:
            return
        try:
            self._connection.send_bytes(data)
        except OSError:
            return

    def receive(self) -> ControlMessage | None:
        """Wait for the next message and return it, or None if the peer has exited."""
        try:
            message: ControlMessage = _DECODER.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return message
