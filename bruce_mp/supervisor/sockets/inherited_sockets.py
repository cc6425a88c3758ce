"""Inherited sockets: from a service manager, from `bruce hold`, or from the daemon that this code replaces.

A service manager describes the descriptors that it passes, with their names, in three environment variables:
https://www.freedesktop.org/software/systemd/man/sd_listen_fds.html. In an upgrade, the old code passes its sockets to
the new code (`handover.py`), which then owns the same socket files. `kept_sockets.py` describes `bruce hold`.

A setting *claims* the inherited socket that is bound to the setting's address, or the service manager's socket with the
setting's name. If no setting claims a socket of a service manager or of `bruce hold`, the start fails, because the
clients of that socket would wait forever. If no setting claims a socket of the replaced code, the new code closes it,
after the old input has received the waiting datagrams.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket
from bruce_mp.telemetry.logs import plural

if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import SocketKind
    from typing import NoReturn

__all__ = ["InheritedSocket", "InheritedSockets", "sockets_from_manager", "with_socket_file"]

SD_LISTEN_FDS_START: Final = 3
log = logging.getLogger(__name__)
_READ_TIMEOUT_S: Final = 2.0
"""Time limit for an input of the replaced code to read an unclaimed socket empty."""
_READ_POLL_S: Final = 0.01
_KIND_NAMES: Final = {
    socket.SOCK_DGRAM: "a datagram socket (systemd: ListenDatagram=)",
    socket.SOCK_STREAM: "a listening stream socket (systemd: ListenStream=)",
}

_REMEDIES: Final = {
    False: "Remove it there (systemd: in the .socket unit)",
    True: "Start it with the daemon's configuration",
}
"""The remedy for an unclaimed socket, by `InheritedSocket.is_from_hold`."""


@dataclass(frozen=True, slots=True)
class InheritedSocket:
    """An open socket, with the name that a service manager gave it, or else the name of its setting.

    `is_ours` is False for a socket of a service manager, which keeps the socket open after the daemon has ended.
    `is_from_hold` is True for a socket of `bruce hold`; `is_ours` is then True, but the socket file must stay after a
    failed start. `queue_length` is the maximum number of datagrams in the socket's queue, 0 if unknown.
    """

    socket: socket.socket
    name: str
    is_ours: bool = False
    queue_length: int = 0
    is_from_hold: bool = False

    @property
    def bound(self) -> BoundSocket:
        """Return the socket as a BoundSocket, with its socket file if the daemon may remove that file."""
        bound = BoundSocket(self.socket, is_ours=self.is_ours, queue_length=self.queue_length)
        return bound if self.is_from_hold else with_socket_file(bound)

    def serves(self, setting: str, address: HostPort | UnixPath) -> bool:
        """Return True if the socket is bound to the address of a setting.

        Also return True if a service manager passes the socket under the name of the setting, at any address.
        """
        if self.name == setting and not self.is_ours:
            return True
        bound_to = _address_of(self.socket)
        if not isinstance(bound_to, HostPort) or not isinstance(address, HostPort):
            return bound_to == address
        if not address.port and self.name == setting:
            bound_to = HostPort(bound_to.host, 0)  # the setting has port 0, so the kernel chose the socket's port
        return tuple(bound_to) == _resolved(address)

    @property
    def origin(self) -> str:
        """Return the name of the program that passes the socket to the daemon."""
        if self.is_from_hold:
            return "bruce hold"
        return "the replaced daemon" if self.is_ours else "the service manager"

    def refuse(self) -> NoReturn:
        """Raise StartError, because no setting claims the socket."""
        raise StartError(
            f"No setting names the socket at {_address_text(self.socket)} that {self.origin} passes. "
            f"{_REMEDIES[self.is_from_hold]}, or name its address in the configuration, as in input.unix_datagram.path."
        )

    def check_kind(self, setting: str, kind: SocketKind) -> None:
        """Raise StartError if the socket is not of this kind, or if it is a stream socket that does not listen."""
        listens = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if self.socket.type != kind or bool(listens) != (kind == socket.SOCK_STREAM):
            raise StartError(
                f"{setting}: the socket that {self.origin} passes at {_address_text(self.socket)} is unusable; it must "
                f"be {_KIND_NAMES[kind]}."
            )


def with_socket_file(bound: BoundSocket) -> BoundSocket:
    """Add the path of the socket file, so that the daemon removes the file when it ends.

    Return the socket as it is if it has no socket file, or belongs to a service manager. `InheritedSockets.claim`
    leaves the file out for a socket of `bruce hold`.
    """
    address = _address_of(bound.socket)
    if not bound.is_ours or not isinstance(address, UnixPath) or not Path(address.path).is_socket():
        return bound
    return bound._replace(path=Path(address.path), file_status=Path(address.path).lstat())


class InheritedSockets:
    """Inherited sockets that no setting has claimed yet."""

    def __init__(self, sockets: Iterable[InheritedSocket] = ()) -> None:
        self._sockets = list(sockets)

    def add(self, sockets: Iterable[InheritedSocket]) -> None:
        self._sockets += sockets

    def claim(self, setting: str, kind: SocketKind, address: HostPort | UnixPath) -> BoundSocket | None:
        """Remove the socket for a setting from these sockets and return it, or return None if there is none.

        Raise StartError if the socket is of the wrong kind.
        """
        for inherited in self._sockets:
            if inherited.serves(setting, address):
                inherited.check_kind(setting, kind)
                self._sockets.remove(inherited)
                return inherited.bound
        return None

    def refuse_unclaimed(self) -> None:
        """Close the unclaimed sockets. Raise StartError if a service manager or `bruce hold` passes one of them."""
        for inherited in self._sockets:
            if not inherited.is_ours or inherited.is_from_hold:
                inherited.refuse()
        self.close()

    def close(self) -> None:
        """Close the unclaimed sockets, and remove the socket files that the daemon may remove.

        An input of the replaced code that still runs first receives the waiting datagrams.
        """
        for inherited in self._sockets:
            inherited.bound.remove_file()
            if inherited.socket.type == socket.SOCK_DGRAM and (lost_count := _refuse_senders(inherited.socket)):
                address = _address_text(inherited.socket)
                log.error(
                    "No setting names the socket at %s: %s in it are lost.", address, plural(lost_count, "datagram")
                )
            inherited.socket.close()
        self._sockets.clear()


def sockets_from_manager() -> InheritedSockets:
    """Return the sockets that the service manager passes, and take care that no child process inherits them."""
    variables = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if variables["LISTEN_PID"] != str(os.getpid()) or not variables["LISTEN_FDS"].isdecimal():
        return InheritedSockets()
    count = int(variables["LISTEN_FDS"])
    names = variables["LISTEN_FDNAMES"].split(":")
    names += [""] * (count - len(names))
    return InheritedSockets([_open_inherited(SD_LISTEN_FDS_START + index, names[index]) for index in range(count)])


def _open_inherited(descriptor: int, name: str) -> InheritedSocket:
    try:
        opened = socket.socket(fileno=descriptor)
    except OSError as error:
        reason = "is not a socket" if error.errno == errno.ENOTSOCK else f"cannot be used: {error.strerror}"
        raise StartError(
            f"Descriptor {descriptor} ({name or 'without a name'}), which the service manager passes, {reason}. Only "
            "sockets can be passed."
        ) from error
    opened.set_inheritable(False)
    return InheritedSocket(opened, name)


def _refuse_senders(datagrams: socket.socket) -> int:
    """Let sends to the socket fail, wait until another process has read it empty, and return the number of the rest."""
    datagrams.shutdown(socket.SHUT_RD)
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while _has_datagram(datagrams, socket.MSG_PEEK) and time.monotonic() < deadline:
        time.sleep(_READ_POLL_S)
    return sum(1 for _ in iter(lambda: _has_datagram(datagrams), False))


def _has_datagram(datagrams: socket.socket, flags: int = 0) -> bool:
    """Receive a datagram; return False if none waits. A poll would report a socket that was shut down as readable."""
    try:
        datagrams.recv(1, flags | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def _address_of(inherited: socket.socket) -> HostPort | UnixPath | None:
    """Return the address to which a socket is bound, or None for an address that no setting can have."""
    name = inherited.getsockname()
    if inherited.family == socket.AF_UNIX:
        return UnixPath(name) if isinstance(name, str) and name else None
    if inherited.family in {socket.AF_INET, socket.AF_INET6}:
        return HostPort(name[0], name[1])
    return None


def _address_text(inherited: socket.socket) -> str:
    address = _address_of(inherited)
    return repr(inherited.getsockname()) if address is None else str(address)


def _resolved(address: HostPort) -> tuple[str, int] | None:
    """Return the numeric form of a setting's address, or None if its host name does not resolve."""
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return None
    host, port = addresses[0][4][:2]
    return str(host), int(port)
