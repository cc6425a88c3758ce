"""Sockets that `bruce hold` keeps open: its messages to and from the daemon, and the daemon's end of the connection.

`bruce hold` listens at a socket in the run directory. A message with sockets lists their settings, and carries their
descriptors (SCM_RIGHTS) in the same order:

| a daemon | sends | and receives |
|---|---|---|
| that starts, and has the lock of the run directory | a request | all sockets that the configuration names |
| that runs and finds a `bruce hold` | its sockets | nothing; the connection stays open |

So either program may start or end first, and the sockets stay open while one of them runs. While its connection is
open, a running daemon knows that the sockets stay open after its end.
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
"""Wait for `bruce hold`, which binds or closes sockets before it answers."""
_MAX_BYTES: Final = 64 << 10
_MAX_SOCKETS: Final = 16
"""Bounds of a message; a daemon has at most four sockets."""

log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True):
    """A socket with its setting; `queue` is the maximum number of queued datagrams, 0 if unknown."""

    setting: str
    queue: int = 0


class _Message(msgspec.Struct, frozen=True):
    """The JSON of a message; `sockets` is None in a request. Later releases may add fields, and must keep these."""

    sockets: tuple[_Entry, ...] | None = None


def send_sockets(connection: socket.socket, sockets: Iterable[tuple[str, BoundSocket]]) -> None:
    """Send sockets with their settings; the receiver gets copies of their descriptors."""
    listed = list(sockets)
    message = _Message(tuple(_Entry(setting, bound.queue_length) for setting, bound in listed))
    descriptors = [bound.socket.fileno() for _, bound in listed]
    socket.send_fds(connection, [msgspec.json.encode(message)], descriptors, socket.MSG_NOSIGNAL)


def receive_message(connection: socket.socket) -> list[InheritedSocket] | None:
    """Receive a message: its sockets, or None for a request.

    Raise EOFError at the end of the connection, OSError or ValueError for an unusable message.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_SOCKETS, socket.MSG_CMSG_CLOEXEC)
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if not data:
        raise EOFError
    entries = msgspec.json.decode(data, type=_Message).sockets
    if entries is None:
        return None
    return [
        InheritedSocket(each, entry.setting, is_ours=True, queue_length=entry.queue, is_kept=True)
        for each, entry in zip(sockets, entries, strict=True)
    ]


def request_sockets(run_dir: Path) -> list[InheritedSocket]:
    """Return the sockets that `bruce hold` keeps, or none if it does not run.

    Call this with the lock of the run directory. Raise StartError if `bruce hold` does not respond.
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
    """The connection of a running daemon to `bruce hold`; `offer` connects again after its end."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._connection: socket.socket | None = None

    def offer(self, sockets: Iterable[tuple[str, BoundSocket]]) -> bool:
        """Send the sockets to `bruce hold`, if it runs without them. Return True if it keeps them open."""
        if not self._is_connected():
            with suppress(OSError):
                self._connection = _connect(self._run_dir, timeout_s=0)  # the supervisor must not wait
                send_sockets(self._connection, sockets)
                log.log(NOTICE, "bruce hold keeps the listening sockets open.")
        return self._is_connected()

    def _is_connected(self) -> bool:
        """Check the connection; `bruce hold` sends nothing over it, so it is readable only at its end."""
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
