"""The messages between `bruce hold` and daemons, and the connection of a running daemon to `bruce hold`.

`bruce hold` listens at a socket in the run directory. A daemon connects to it and sends one message:

| a daemon | sends | and receives |
|---|---|---|
| that starts, and has the lock of the run directory | a request | all sockets that the configuration names |
| that runs, and finds that `bruce hold` runs | its sockets | nothing; the connection stays open |

A message with sockets lists the settings that they serve, and carries their descriptors (SCM_RIGHTS) in the same order.

So either program may start or end first, and the sockets stay open while one of the two runs. While the connection is
open, a running daemon knows that `bruce hold` will keep the sockets open after the daemon has ended.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSocket
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket

__all__ = ["HOLD_SOCKET", "SocketKeeperLink", "receive_message", "request_sockets", "send_sockets"]

HOLD_SOCKET: Final = "hold.socket"
_TIMEOUT_S: Final = 5.0
"""Time limit for an answer of `bruce hold`, which may bind or close sockets before it answers."""
_MAX_MESSAGE_BYTES: Final = 64 << 10
_MAX_SOCKETS: Final = 16
"""Maximum number of sockets in a message; a daemon has at most four."""

log = logging.getLogger(__name__)


class _SentSocket(msgspec.Struct, frozen=True):
    """The setting that a socket serves, and the maximum number of datagrams in the socket's queue, 0 if unknown."""

    setting: str
    queue_length: int = msgspec.field(default=0, name="queue")


class _Message(msgspec.Struct, frozen=True):
    """The JSON of a message; `sockets` is None in a request.

    Programs of different releases may exchange messages. So later releases may add keys, and must keep these.
    """

    sockets: tuple[_SentSocket, ...] | None = None


def send_sockets(connection: socket.socket, sockets: Iterable[tuple[str, BoundSocket]]) -> None:
    """Send pairs of setting and socket; the receiver gets copies of the sockets' descriptors."""
    pairs = list(sockets)
    message = _Message(tuple(_SentSocket(setting, bound.queue_length) for setting, bound in pairs))
    descriptors = [bound.socket.fileno() for _, bound in pairs]
    socket.send_fds(connection, [msgspec.json.encode(message)], descriptors, socket.MSG_NOSIGNAL)


def receive_message(connection: socket.socket) -> list[InheritedSocket] | None:
    """Receive a message, and return its sockets, or None if it is a request.

    Raise EOFError at the end of the connection, and OSError or ValueError for an unusable message.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, _MAX_SOCKETS, socket.MSG_CMSG_CLOEXEC)
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if not data:
        raise EOFError
    entries = msgspec.json.decode(data, type=_Message).sockets
    if entries is None:
        return None
    return [
        InheritedSocket(each, entry.setting, is_ours=True, queue_length=entry.queue_length, is_from_hold=True)
        for each, entry in zip(sockets, entries, strict=True)
    ]


def request_sockets(run_dir: Path) -> list[InheritedSocket]:
    """Return the sockets that `bruce hold` keeps open, or an empty list if it does not run.

    The caller must hold the lock of the run directory. Raise StartError if `bruce hold` does not respond.
    """
    try:
        connection = _connect(run_dir, _TIMEOUT_S)
    except OSError:
        return []
    try:
        with connection:
            connection.send(msgspec.json.encode(_Message()), socket.MSG_NOSIGNAL)
            return receive_message(connection) or []
    except EOFError:
        return []
    except (OSError, ValueError) as error:
        raise StartError(
            f"bruce hold keeps the sockets, and does not pass them on at {run_dir / HOLD_SOCKET} ({error}). End "
            "it with SIGKILL, and start it again."
        ) from error


def _connect(run_dir: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(run_dir / HOLD_SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


class SocketKeeperLink:
    """The connection of a running daemon to `bruce hold`. If the connection has ended, `offer` connects again."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._connection: socket.socket | None = None

    def offer(self, sockets: Iterable[tuple[str, BoundSocket]]) -> bool:
        """Send the sockets to `bruce hold`, if it runs and does not have them. Return True if it keeps them open."""
        if not self._is_connected():
            with suppress(OSError):
                self._connection = _connect(self._run_dir, timeout_s=0)  # the supervisor must not wait
                send_sockets(self._connection, sockets)
                log.log(NOTICE, "bruce hold keeps the listening sockets open.")
        return self._is_connected()

    def _is_connected(self) -> bool:
        """Return True if the connection is open; if it has ended, close it and log a warning.

        `bruce hold` sends nothing over this connection, so a read succeeds only at the end of the connection.
        """
        if self._connection is None:
            return False
        try:
            self._connection.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._connection.close()
        self._connection = None
        log.warning("bruce hold has ended: the listening sockets end with the daemon. Start it again.")
        return False
