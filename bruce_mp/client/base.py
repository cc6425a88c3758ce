"""Base of all clients: sending, counting, and recovery after a `fork()`.

After a fork, the clients in the child begin again with new sockets, locks and counts; those in the parent go on.
The reset runs in a fork hook of the interpreter, before other code of the child. So the child never waits for a lock
that a thread of the parent held.
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
from bruce_mp.protocol.client.record_headers import Buffer, as_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from bruce_mp.protocol.client.record_headers import HeaderInput

__all__ = ["Client", "Stats", "check_path", "new_socket"]

ErrorMode = Literal["raise", "count"]

AcceptFunction = Callable[
    [bytes | str, Buffer | None, Buffer | None, int | None, int | None, "Sequence[HeaderInput]", bool], bool
]
"""A function with the parameters of `Client.send()`, in the same order; it returns True if it accepted the message."""

_SOCKET_PATH_MAX: Final = 107
"""Linux' limit for the path of a UNIX socket."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of a client's messages in this process: each message counts as sent, waiting or dropped."""

    sent: int
    """Number of messages that the kernel accepted whole."""
    sent_bytes: int
    """Number of bytes of the sent messages."""
    waiting: int
    """Number of messages in the client's buffer, not yet sent."""
    dropped: Mapping[str, int]
    """Number of messages that the client gave up, by the `reason` of their `SendError`."""
    connections: int
    """Number of connections that a stream client opened; 0 for datagrams."""


class Client(ABC):
    """Sender of messages to a daemon. Threads may share a client, and a child may use it after a `fork()`.

    If a message cannot be sent, `stats()` counts it as dropped. Then `send()` raises a `SendError` if `errors` is
    "raise", and returns False if `errors` is "count".
    """

    timeout: float | None
    """Longest wait of `send()` in seconds; None: without limit."""
    _accept: AcceptFunction
    """The fast path of `send()`, from `client/kernels`.  If it returns False, `send()` takes the slow path."""

    def __init__(self, destination: str, errors: ErrorMode, max_message: int, limit_advice: str) -> None:
        """`limit_advice` is the end of the error text for a message of more than `max_message` bytes."""
        self._destination = destination
        self._errors = errors
        self._max_message = max_message
        self._limit_advice = limit_advice
        Client._reset(self)  # not `self._reset`: a subclass's override also uses fields of the subclass
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
        """Send one message. Return True if it was accepted; otherwise do what the client's `errors` selects.

        Args:
            topic: the topic's name.
            value: the record value; None is null, which deletes the key from a compacted topic.
            key: the record key. It chooses the partition if the daemon has a partitioner for the topic.
            partition_key: the partition is this number modulo the number of partitions; None: the daemon chooses.
            timestamp_ms: milliseconds since the epoch; None: the current time.
            headers: record headers, as pairs of key and value; a value may be None.
            keep_empty: True: an empty key or value stays empty in Kafka. False: an empty key becomes null, and the
                daemon's configuration decides if an empty value does.

        Raise `LocalProtocolError` for arguments that the format does not allow.
        """
        if self._accept(topic, value, key, partition_key, timestamp_ms, headers, keep_empty):
            return True
        return self.send_encoded(encode_fields(topic, value, key, partition_key, timestamp_ms, headers, keep_empty))

    def send_encoded(self, message: Buffer) -> bool:
        """Send a message that is already encoded; return and raise the same as `send()`."""
        message = as_bytes(message)
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
        """Close the socket; sent messages still reach the daemon."""

    @abstractmethod
    def _transmit(self, message: Buffer) -> None:
        """Send or buffer one message, or raise a SendError."""

    def stats(self) -> Stats:
        """Return the counts of messages so far."""
        with self._count_lock:
            dropped = MappingProxyType(dict(self._dropped))
            sent, sent_bytes = self._sent_counts()
            return Stats(sent, sent_bytes, self._waiting_count(), dropped, self._connection_count())

    def _at_exit(self) -> None:  # noqa: B027  # only clients with a buffer act here
        """Send the buffered messages at the end of the interpreter, if the client was not closed."""

    def _waiting_count(self) -> int:
        return 0

    def _connection_count(self) -> int:
        return 0

    @abstractmethod
    def _sent_counts(self) -> tuple[int, int]:
        """Return the number of sent messages, and the number of their bytes."""

    def _count_dropped(self, error: SendError, message_count: int = 1) -> None:
        with self._count_lock:
            self._dropped[error.reason] += message_count

    def _reset(self) -> None:
        """Initialize the state, in the constructor and in the child after a fork."""
        # Guards the counts, and the socket of a datagram client.  It is reentrant, because a signal handler may send.
        self._count_lock = threading.RLock()
        self._dropped: Counter[str] = Counter()


def check_path(path: str | os.PathLike[str]) -> str:
    """Return the path as text. Raise SendError if it is empty or too long for a socket."""
    name = os.fspath(path)
    length = len(os.fsencode(name))
    if not 0 < length <= _SOCKET_PATH_MAX:
        raise SendError(f"{name}: a socket's path has 1 to {_SOCKET_PATH_MAX} bytes, and this one has {length}.")
    return name


def new_socket(family: int, kind: int, so_sndbuf: int | None) -> socket.socket:
    """Create a blocking socket, also if `socket.setdefaulttimeout()` has set a timeout.

    `so_sndbuf` is the size of its send buffer in bytes; None leaves the system's default.
    """
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
