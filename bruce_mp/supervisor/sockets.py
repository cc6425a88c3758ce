"""The sockets that the daemon serves.  The supervisor binds them and keeps them open over restarts of its processes,
so that what waits in the kernel survives.

A socket file that nobody serves any more is replaced; one that a living process serves is not.  The permission bits are
right from the first moment, because the umask is set around the bind.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import SocketKind

    from bruce_mp.config.sections import UnixDatagram

__all__ = ["Bound", "bind_datagrams", "bind_http"]

HTTP_SETTING: Final = "http.listen"
DATAGRAM_SETTING: Final = "input.unix_datagram.path"
_BACKLOG: Final = 64


class Bound(NamedTuple):
    """A socket and, if it has one, its file."""

    socket: socket.socket
    path: Path | None = None
    file: os.stat_result | None = None

    def remove_file(self) -> None:
        """Remove the socket file, unless somebody else has put his own there meanwhile."""
        if self.path is None or self.file is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.lstat(), self.file):
                self.path.unlink()


def bind_datagrams(config: UnixDatagram) -> Bound:
    """The datagram socket.  Raises StartError when its place is taken or cannot be used."""
    return _bind_unix(Path(config.path), socket.SOCK_DGRAM, config.mode, DATAGRAM_SETTING)


def bind_http(address: HostPort | UnixPath) -> Bound:
    """The listening socket of the status pages.  Raises StartError when the address is taken or cannot be used."""
    if isinstance(address, HostPort):
        return Bound(_listen_tcp(address))
    bound = _bind_unix(Path(address.path), socket.SOCK_STREAM, None, HTTP_SETTING)
    bound.socket.listen(_BACKLOG)
    return bound


def _listen_tcp(address: HostPort) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        return socket.create_server(place, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartError(f'{HTTP_SETTING} = "{address}" cannot be used: {_tcp_remedy(error)}') from error


def _tcp_remedy(error: OSError) -> str:
    remedies = {
        errno.EADDRINUSE: "another program listens there; stop it or choose another port.",
        errno.EADDRNOTAVAIL: "this host has no such address; choose one that it has, as 127.0.0.1.",
        errno.EACCES: "a port below 1024 needs a privilege; choose a higher one.",
    }
    return remedies.get(error.errno or 0, f"{error.strerror}.")


def _bind_unix(path: Path, kind: SocketKind, mode: int | None, setting: str) -> Bound:
    _clear(path, kind, setting)
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        with _umask(mode):
            bound.bind(str(path))
    except OSError as error:
        bound.close()
        raise StartError(_place_trouble(path, setting, error)) from error
    return Bound(bound, path, path.lstat())


@contextmanager
def _umask(mode: int | None) -> Iterator[None]:
    if mode is None:
        yield
        return
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def _clear(path: Path, kind: SocketKind, setting: str) -> None:
    """Remove the socket file that a dead process left."""
    try:
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode):
            raise StartError(
                f'{setting} = "{path}": there is something that is no socket; remove it or choose another path.'
            )
        if _is_served(path, kind):
            raise StartError(f'{setting} = "{path}": another program receives there; stop it or choose another path.')
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(_place_trouble(path, setting, error)) from error


def _is_served(path: Path, kind: SocketKind) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            if error.errno not in {errno.EPROTOTYPE, errno.EAGAIN}:  # served, in another way or by somebody busy
                raise
        return True


def _place_trouble(path: Path, setting: str, error: OSError) -> str:
    remedies = {
        errno.ENOENT: f"there is no directory {path.parent}; make it or choose another path.",
        errno.ENOTDIR: f"{path.parent} is not a directory; choose another path.",
        errno.EACCES: f"the daemon's user must be allowed to write to {path.parent} and to the socket there.",
        errno.EADDRINUSE: "another program took the place just now; stop it or choose another path.",
    }
    return f'{setting} = "{path}" cannot be used: {remedies.get(error.errno or 0, f"{error.strerror}.")}'
