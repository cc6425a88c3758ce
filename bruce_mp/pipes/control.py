"""The words between the supervisor and a process, and what a process is given at its start.

They travel over a `multiprocessing` pipe of the two.  Its end-of-file tells a process that the supervisor is dead.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from multiprocessing.connection import Connection
from select import select
from typing import Final

import msgspec

from bruce_mp.config.model import Config

__all__ = [
    "MOST_BYTES",
    "Begin",
    "Broker",
    "ConfigTaken",
    "Control",
    "DebugTopics",
    "Dispatchers",
    "Drain",
    "InForce",
    "Loaded",
    "NewConfig",
    "PeerDied",
    "Ready",
    "RefreshMetadata",
    "ReloadOutcome",
    "ReloadRequest",
    "Stop",
    "Word",
]


class Broker(msgspec.Struct, frozen=True):
    """A broker as the metadata names it."""

    node: int
    host: str
    port: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process, before anything else: nobody has your place any more; do your work."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: I could begin at once."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: I have what I need and do my work."""


class Dispatchers(msgspec.Struct, frozen=True, tag=True):
    """Router to supervisor: the dispatchers that there should be, by slot.  Others have nothing left to do."""

    wanted: dict[int, Broker]


class PeerDied(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to router: this process died and was started again; look what it left in the slab."""

    name: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: send what you have at once; no new work will come.

    To an input whose socket goes on taking messages, for the next daemon: take in what waits now, and no more.
    """

    goes_on: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: end now, whatever you hold; it is in the slab."""


class RefreshMetadata(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router: fetch the metadata now."""


class DebugTopics(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor to router and dispatchers: copy the messages of these topics, and no others.

    The supervisor says it again to whoever starts, status included.
    """

    topics: tuple[bytes, ...] = ()
    all: bool = False

    @property
    def any(self) -> bool:
        """Whether there is anything to copy."""
        return self.all or bool(self.topics)

    def covers(self, topic: bytes) -> bool:
        """Whether the messages of a topic are to be copied."""
        return self.all or topic in self.topics


class NewConfig(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to process: from now on this is the configuration.  The answer is ConfigTaken with its number."""

    number: int
    config: Config


class ConfigTaken(msgspec.Struct, frozen=True, tag=True):
    """Process to supervisor: this one is in force with me."""

    number: int


class ReloadRequest(msgspec.Struct, frozen=True, tag=True):
    """Status to supervisor: read the configuration anew; with `only_check` say what would come of it."""

    number: int
    only_check: bool


class ReloadOutcome(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: what came of the request with this number."""

    number: int
    accepted: bool
    text: str


class InForce(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to status: where the configuration in force is from, since when, and how the last reload went.

    Times in ms since the epoch.  `refused` says why the last reload was refused, empty if it was not.
    """

    path: str
    since_ms: int
    reloads: int = 0
    refused: str = ""
    refused_ms: int = 0


Word = (
    Begin
    | Loaded
    | Ready
    | Dispatchers
    | PeerDied
    | Drain
    | Stop
    | RefreshMetadata
    | DebugTopics
    | NewConfig
    | ConfigTaken
    | ReloadRequest
    | ReloadOutcome
    | InForce
)
MOST_BYTES: Final = 128 << 10
"""The largest word: for so much there is room in a pipe of which `select` says that it can be written to."""

_DECODER: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


class Control:
    """One end of the control pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._connection.fileno()

    def send(self, word: Word) -> None:
        """Say a word, without ever waiting.

        It is lost when the other side is gone, who will notice by the end of the pipe, or hangs with hundreds of words
        unread: the supervisor must not hang with it.
        """
        if not select([], [self._connection], [], 0)[1]:
            return
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(word))
        except OSError:
            return

    def receive(self) -> Word | None:
        """The next word; it waits for one.  None = the other side is gone."""
        try:
            word: Word = _DECODER.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return word
