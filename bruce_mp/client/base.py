"""Base of all clients: sending, counting, and recovery after a `fork()`.

After a fork, the child's clients start again with their own sockets, locks and counts; the parent's continue unchanged.
The interpreter's fork hook resets them before the child runs other code, so a lock that another thread of the parent
held never blocks the child.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakSet

from bruce_mp.client.errors import MessageTooLargeError, SendError
from bruce_mp.client.kernels.fields import encode_fields
from bruce_mp.protocol.client.record_headers import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from bruce_mp.protocol.client.record_headers import HeaderInput

__all__ = ["Client", "Stats", "check_path", "new_socket"]

Errors = Literal["raise", "count"]

Accept = Callable[
    [bytes | str, Buffer | None, Buffer | None, int | None, int | None, "Sequence[HeaderInput]", bool], bool
]
"""A function with the parameters of `Client.send()`, in the same order."""

_SOCKET_PATH_MAX: Final = 107
"""Linux' limit for the path of a UNIX socket."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of a client's messages in this process: each message is sent, waiting or dropped."""

    sent: int
    """Messages that Linux accepted whole."""
    sent_bytes: int
    """Bytes of the sent messages."""
    waiting: int
    """Messages in the client's own buffer, not yet sent."""
    dropped: Mapping[str, int]
    """Messages that the client gave up, by the `reason` of their `SendError`."""
    connections: int
    """Number of connections that a stream client opened; 0 for datagrams."""


class Client(ABC):
    """Sender of messages to a daemon. Threads may share it, and it may cross a `fork()`.

    `errors` selects the behavior of `send()` for a message that cannot be sent: "raise" raises a `SendError`, "count"
    returns False. `stats()` counts the message in both cases.
    """

    timeout: float | None
    """Longest wait of `send()` in seconds; `None` waits without limit."""
    _accept: Accept
    """The fast path of `send()`, from `client/kernels`.  If it returns False, `send()` takes the slow path."""

    def __init__(self, destination: str, errors: Errors, max_message: int, limit_advice: str) -> None:
        """`limit_advice` ends the error text of a message that is larger than `max_message`."""
        self._destination = destination
        self._errors = errors
        self._max_message = max_message
        self._limit_advice = limit_advice
        Client._reset(self)  # not the override of a subclass, which also resets the subclass's fields
        _clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SendError:
            if kind is None:
                raise

    def send(
        self,
        topic: bytes | str,
        value: Buffer | None,
        key: Buffer | None = None,
        partition_key: int | None = None,
        timestamp_ms: int | None = None,
        *,
        headers: Sequence[HeaderInput] = (),
        keep_empty: bool = False,
    ) -> bool:
        """Send one message. Return True if it was accepted; otherwise `errors` selects the behavior.

        Args:
            topic: the topic's name.
            value: None is null, a tombstone.
            key: the record key. It chooses the partition if the daemon has a partitioner for the topic.
            partition_key: chooses the partition, modulo the number of partitions; None: the daemon chooses.
            timestamp_ms: milliseconds since the epoch; None: the current time.
            headers: record headers, as pairs of key and value; a value may be None.
            keep_empty: an empty key or value reaches Kafka as empty. Otherwise an empty key becomes null, and the
                daemon's configuration decides about an empty value.

        Raise `LocalProtocolError` for arguments that the format does not allow.
        """
        if self._accept(topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
            return True
        return self.send_encoded(encode_fields(topic, value, key, partition_key, timestamp_ms, headers, keep_empty))

    def send_encoded(self, message: Buffer) -> bool:
        """Send a message that is already encoded; the result and the errors are those of `send()`."""
        try:
            if len(message) > self._max_message:
                raise MessageTooLargeError(
                    f"{self._destination}: a message of {len(message)} bytes is too large, the daemon accepts at most "
                    f"{self._max_message}. {self._limit_advice}"
                )
            self._transmit(message)
        except SendError as error:
            self._count_dropped(error)
            if self._errors == "raise":
                raise
            return False
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the socket. This does not affect messages that were sent."""

    @abstractmethod
    def _transmit(self, message: Buffer) -> None:
        """Send or buffer one message, or raise a SendError."""

    def stats(self) -> Stats:
        """Return the counts of messages so far."""
        with self._counting:
            dropped = MappingProxyType(dict(self._dropped))
            sent, sent_bytes = self._sent_counts()
            return Stats(sent, sent_bytes, self._waiting_count(), dropped, self._connection_count())

    def _at_exit(self) -> None:  # noqa: B027  # only clients with a buffer act here
        """Handle the end of the interpreter for a client that was not closed."""

    def _waiting_count(self) -> int:
        """Return the number of messages in the client's own buffer."""
        return 0

    def _connection_count(self) -> int:
        """Return the number of connections that the client has opened."""
        return 0

    @abstractmethod
    def _sent_counts(self) -> tuple[int, int]:
        """Return the number of sent messages, and the number of their bytes."""

    def _count_dropped(self, error: SendError, message_count: int = 1) -> None:
        with self._counting:
            self._dropped[error.reason] += message_count

    def _reset(self) -> None:
        """Initialize the state, in the constructor and in the child after a fork."""
        # Guards the counts and the sending of datagrams.  It is reentrant, because a signal handler may send.
        self._counting = threading.RLock()
        self._dropped: Counter[str] = Counter()


def check_path(path: str | os.PathLike[str]) -> str:
    """Return the path as text. Raise SendError if it is empty or too long for a socket."""
    name = os.fspath(path)
    length = len(os.fsencode(name))
    if not 0 < length <= _SOCKET_PATH_MAX:
        raise SendError(f"{name}: a socket's path has 1 to {_SOCKET_PATH_MAX} bytes, and this one has {length}.")
    return name


def new_socket(family: int, kind: int, so_sndbuf: int | None) -> socket.socket:
    """Create a blocking socket; `socket.setdefaulttimeout()` does not apply."""
    created = socket.socket(family, kind)
    created.settimeout(None)
    if so_sndbuf is not None:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, so_sndbuf)
    return created


# --- fork and exit ---------------------------------------------------------------------------------------------------

_clients: Final[WeakSet[Client]] = WeakSet()


def _run_exit_handlers() -> None:
    for client in list(_clients):
        client._at_exit()  # noqa: SLF001


def _reset_after_fork() -> None:
    for client in list(_clients):
        client._reset()  # noqa: SLF001


os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_run_exit_handlers)
