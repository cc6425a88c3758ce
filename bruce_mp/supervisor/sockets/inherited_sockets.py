"""Inherited sockets: from a service manager, from `bruce hold`, or from the daemon that this code replaces.

A service manager passes descriptors and their names in three environment variables:
https://www.freedesktop.org/software/systemd/man/sd_listen_fds.html. A daemon under upgrade passes its sockets to the
new code (`handover.py`), which then owns the same socket files. `kept_sockets.py` describes `bruce hold`.

A setting claims the socket that is bound to its address, or a service manager's socket that has the setting's name. A
socket of a service manager or of `bruce hold` that no setting claims is an error, because its clients would wait
forever. A socket from before an upgrade that no setting claims is closed.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket

if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import SocketKind
    from typing import NoReturn

__all__ = ["InheritedSocket", "InheritedSockets", "sockets_from_manager", "with_file"]

SD_LISTEN_FDS_START: Final = 3
_KINDS: Final = {
    socket.SOCK_DGRAM: "a datagram socket (systemd: ListenDatagram=)",
    socket.SOCK_STREAM: "a listening stream socket (systemd: ListenStream=)",
}

_REMEDIES: Final = {
    False: "Remove it there (systemd: in the .socket unit)",
    True: "Start it with the daemon's configuration",
}
"""What to do about an unclaimed socket that another program keeps open, by `is_kept`."""


@dataclass(frozen=True, slots=True)
class InheritedSocket:
    """An open socket, with the name that a service manager gave it, or else the name of its setting.

    `is_ours` is False for a socket of a service manager, which keeps it open. `is_kept` is True for one of `bruce
    hold`: the daemon may close it, but a failed start leaves its file. `queue_length` is the maximum number of queued
    datagrams, 0 if unknown.
    """

    socket: socket.socket
    name: str
    is_ours: bool = False
    queue_length: int = 0
    is_kept: bool = False

    @property
    def bound(self) -> BoundSocket:
        """Return the socket as a bound one, with its socket file if the daemon may remove that."""
        bound = BoundSocket(self.socket, is_ours=self.is_ours, queue_length=self.queue_length)
        return bound if self.is_kept else with_file(bound)

    def serves(self, setting: str, address: HostPort | UnixPath) -> bool:
        """Return True if this socket has the address of a setting or, from a service manager, its name."""
        if self.name == setting and not self.is_ours:
            return True
        bound_to = _address_of(self.socket)
        if not isinstance(bound_to, HostPort) or not isinstance(address, HostPort):
            return bound_to == address
        if not address.port and self.name == setting:
            bound_to = HostPort(bound_to.host, 0)  # the kernel chose the port
        return tuple(bound_to) == _resolved(address)

    @property
    def origin(self) -> str:
        """The program that passes the socket to the daemon."""
        if self.is_kept:
            return "bruce hold"
        return "the replaced daemon" if self.is_ours else "the service manager"

    def refuse(self) -> NoReturn:
        """Raise StartError, because no setting claims the socket."""
        raise StartError(
            f"No setting names the socket at {_address_text(self.socket)} that {self.origin} passes. "
            f"{_REMEDIES[self.is_kept]}, or name its address in the configuration, as in input.unix_datagram.path."
        )

    def check(self, setting: str, kind: SocketKind) -> None:
        """Raise StartError if the socket is not of this kind, or if a stream socket does not listen."""
        listens = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if self.socket.type != kind or bool(listens) != (kind == socket.SOCK_STREAM):
            raise StartError(
                f"{setting}: the socket that {self.origin} passes at {_address_text(self.socket)} is unusable; it must "
                f"be {_KINDS[kind]}."
            )


def with_file(bound: BoundSocket) -> BoundSocket:
    """Return a socket of ours with its file, which `claim` leaves out for a socket of `bruce hold`."""
    address = _address_of(bound.socket)
    if not bound.is_ours or not isinstance(address, UnixPath) or not Path(address.path).is_socket():
        return bound
    return bound._replace(path=Path(address.path), file=Path(address.path).lstat())


class InheritedSockets:
    """Inherited sockets that no setting has claimed yet."""

    def __init__(self, sockets: Iterable[InheritedSocket] = ()) -> None:
        self._sockets = list(sockets)

    def add(self, sockets: Iterable[InheritedSocket]) -> None:
        self._sockets += sockets

    def claim(self, setting: str, kind: SocketKind, address: HostPort | UnixPath) -> BoundSocket | None:
        """Remove and return the socket for a setting, or None. Raise StartError if it is of the wrong kind."""
        for inherited in self._sockets:
            if inherited.serves(setting, address):
                inherited.check(setting, kind)
                self._sockets.remove(inherited)
                return inherited.bound
        return None

    def refuse_unclaimed(self) -> None:
        """Close the remaining sockets as `close` does. Raise StartError if another program keeps one of them open."""
        for inherited in self._sockets:
            if not inherited.is_ours or inherited.is_kept:
                inherited.refuse()
        self.close()

    def close(self) -> None:
        """Close the remaining sockets, and remove the files of ours."""
        for inherited in self._sockets:
            inherited.bound.remove_file()
            inherited.socket.close()
        self._sockets.clear()


def sockets_from_manager() -> InheritedSockets:
    """Return the sockets from the service manager. Child processes do not inherit them."""
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


def _address_of(inherited: socket.socket) -> HostPort | UnixPath | None:
    """Return the bound address, or None for an address that no setting can have."""
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
    """Return the numeric address of a setting, or None if it does not resolve."""
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return None
    host, port = addresses[0][4][:2]
    return str(host), int(port)
