"""What all clients have in common: sending a message, counting, and what happens after a `fork()`.

After a fork the child's clients begin anew, with sockets, locks and counts of their own; the parent's go on untouched.
The hook of the interpreter does it, before the child runs anything else, so that no lock of a thread that is not there
can hold anybody up.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakSet

from bruce_mp.client.failures import MessageTooLargeError, SendError
from bruce_mp.protocol.client_wire import encode_any_partition, encode_partition_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from bruce_mp.protocol.client_headers import WrittenHeader

__all__ = ["Client", "Stats", "check_path"]

Buffer = bytes | bytearray | memoryview

Errors = Literal["raise", "count"]

_SOCKET_PATH_MAX: Final = 107


@dataclass(frozen=True, slots=True)
class Stats:
    """What became of the messages of a client in this process: offered = sent + waiting + all that were dropped."""

    sent: int
    """Messages that the kernel has, whole."""
    sent_bytes: int
    waiting: int
    """Messages in the client's own buffer."""
    dropped: Mapping[str, int]
    """Messages that were not taken, by the reason of their `SendError`."""
    connections: int
    """How often a stream client has connected; 0 for datagrams."""


class Client(ABC):
    """Sends messages to a daemon.  Threads may share it, and it may cross a `fork()`.

    `errors` says what `send()` does with a message that cannot be sent: "raise" raises the `SendError` that fits,
    "count" returns False.  Either way `stats()` counts it.
    """

    timeout: float | None
    """Seconds that `send()` may wait; `None`: without end."""

    def __init__(self, place: str, errors: Errors, max_message: int, limit_advice: str) -> None:
        self._place = place
        self._errors = errors
        self._max_message = max_message
        self._limit_advice = limit_advice
        Client._renew(self)
        _living.add(self)

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
        value: Buffer,
        key: Buffer = b"",
        partition_key: int | None = None,
        timestamp_ms: int | None = None,
        *,
        headers: Sequence[WrittenHeader] = (),
    ) -> bool:
        """Send one message; with a `partition_key` it chooses the partition, else the daemon does.

        Without `timestamp_ms` the message bears the current time.  `headers` are the Kafka record's, pairs of key and
        value; a value may be None.  True if the message was taken; see `errors` for what
        happens if not.  Raises `LocalProtocolError` for what the format does not allow.
        """
        now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        if partition_key is None:
            return self.send_encoded(encode_any_partition(topic, value, key, timestamp_ms=now, headers=headers))
        return self.send_encoded(
            encode_partition_key(partition_key, topic, value, key, timestamp_ms=now, headers=headers)
        )

    def send_encoded(self, message: Buffer) -> bool:
        """Send a message that is encoded already, as it is."""
        try:
            if len(message) > self._max_message:
                raise MessageTooLargeError(
                    f"{self._place}: a message of {len(message)} bytes is too large, the daemon takes at most "
                    f"{self._max_message}. {self._limit_advice}"
                )
            self._hand_over(message)
        except SendError as error:
            self._count_dropped(error)
            if self._errors == "raise":
                raise
            return False
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the socket; what was sent stays sent."""

    @abstractmethod
    def _hand_over(self, message: Buffer) -> None:
        """Take one message, or raise the SendError that fits."""

    def stats(self) -> Stats:
        """What became of the messages so far."""
        with self._counting:
            dropped = MappingProxyType(dict(self._dropped))
            return Stats(self._sent, self._sent_bytes, self._waiting(), dropped, self._connections())

    def _leave(self) -> None:  # noqa: B027  # most clients have nothing to do
        """The interpreter ends, and nobody has closed the client."""

    def _waiting(self) -> int:
        return 0

    def _connections(self) -> int:
        return 0

    def _count_sent(self, messages: int, size: int) -> None:
        with self._counting:
            self._sent += messages
            self._sent_bytes += size

    def _count_dropped(self, error: SendError, messages: int = 1) -> None:
        with self._counting:
            self._dropped[error.reason] += messages

    def _renew(self) -> None:
        """Begin at the beginning: at first, and in the child after a fork."""
        self._counting = threading.RLock()  # a signal handler may send, too
        self._sent = self._sent_bytes = 0
        self._dropped: Counter[str] = Counter()


def check_path(path: str | os.PathLike[str]) -> str:
    """The path as text; SendError if no socket can have it."""
    name = os.fspath(path)
    length = len(os.fsencode(name))
    if not 0 < length <= _SOCKET_PATH_MAX:
        raise SendError(f"{name}: a socket's path has 1 to {_SOCKET_PATH_MAX} bytes, this one has {length}.")
    return name


def new_socket(family: int, kind: int, send_buffer: int | None) -> socket.socket:
    """A blocking socket, whatever socket.setdefaulttimeout() says."""
    made = socket.socket(family, kind)
    made.settimeout(None)
    if send_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    return made


# --- forks and ends --------------------------------------------------------------------------------------------------

_living: Final[WeakSet[Client]] = WeakSet()


def _leave_all() -> None:
    for client in list(_living):
        client._leave()  # noqa: SLF001


def _renew_all() -> None:
    for client in list(_living):
        client._renew()  # noqa: SLF001


os.register_at_fork(after_in_child=_renew_all)
atexit.register(_leave_all)
