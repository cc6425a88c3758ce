"""Bind the sockets of inputs, status pages and `bruce hold`; an address that is in use or unusable raises StartError.

The supervisor keeps the sockets open while its processes restart, so data that the kernel has queued survives. A bind
replaces a socket file only if no process serves it any more. A socket file never has wrong permission bits: the umask
is set for the bind, and if the file gets another owner, it has mode 0 until then. If a bind finds a socket file of
the daemon's user without write permission for that user, it adds the permission while it tests if a process serves it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import gid_of, uid_of
from bruce_mp.config.addresses import HostPort
from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets.datagram_limits import queue_length

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import SocketKind

    from bruce_mp.config.inputs import Tcp, UnixDatagram, UnixStream
    from bruce_mp.config.sections import Http

__all__ = [
    "DATAGRAM_SETTING",
    "HTTP_SETTING",
    "STREAM_SETTING",
    "TCP_SETTING",
    "BoundSocket",
    "bind_datagrams",
    "bind_hold_socket",
    "bind_http",
    "bind_tcp",
    "bind_unix_stream",
]

HTTP_SETTING: Final = "http.listen"
DATAGRAM_SETTING: Final = "input.unix_datagram.path"
STREAM_SETTING: Final = "input.unix_stream.path"
TCP_SETTING: Final = "input.tcp"
HOLD_NAME: Final = "bruce hold"  # in error texts, in place of the name of a setting
log = logging.getLogger(__name__)
_INPUT_BACKLOG: Final = 4096
"""Backlog of `listen` for the inputs; the kernel limits it to net.core.somaxconn."""
_SMALL_BACKLOG: Final = 64
"""Backlog for the status pages and `bruce hold`, which have few clients."""


class BoundSocket(NamedTuple):
    """A bound socket, and the path of its socket file if the daemon may remove that file.

    `file_status` is the status of the file when the socket was bound or claimed; `has_file` compares it with the status
    now. `is_ours` is False for a socket of a service manager, which keeps the socket open after the daemon has ended.
    `queue_length` is the maximum number of datagrams in the socket's queue, 0 if unknown.
    """

    socket: socket.socket
    path: Path | None = None
    file_status: os.stat_result | None = None
    is_ours: bool = True
    queue_length: int = 0

    def has_file(self) -> bool:
        """Return True if the socket file is still at its path, and no other program has replaced it."""
        if self.path is None or self.file_status is None:
            return False
        try:
            return os.path.samestat(self.path.lstat(), self.file_status)
        except FileNotFoundError:
            return False

    def lost_file(self) -> Path | None:
        """Return the path of the socket file if it is gone or was replaced, so that no program can connect any more.

        Return None for a socket without a file. Only a file with a known `file_status` is found to be replaced.
        """
        address = self.socket.getsockname() if self.socket.family == socket.AF_UNIX else ""
        if not isinstance(address, str) or not address:
            return None
        path = Path(address)
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return path
        except OSError:
            return None  # the directory cannot be read
        is_replaced = self.file_status is not None and not os.path.samestat(status, self.file_status)
        return path if is_replaced else None

    def poll(self, events: int) -> int:
        """Return the bits of `events` and POLLHUP that the socket reports now; 0 if it reports none of them."""
        poll = select.poll()
        poll.register(self.socket, events)
        return next((reported & (events | select.POLLHUP) for _, reported in poll.poll(0)), 0)

    def remove_file(self) -> None:
        """Remove the socket file, unless another program has replaced it."""
        try:
            if self.path is not None and self.has_file():
                self.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The socket file %s cannot be removed: %s.", self.path, error.strerror)


def bind_datagrams(config: UnixDatagram) -> BoundSocket:
    length = queue_length() or 0  # a socket keeps the limit that applies at its creation
    bound = _bind_unix(Path(config.path), socket.SOCK_DGRAM, FileAccess.of(config), DATAGRAM_SETTING)
    return bound._replace(queue_length=length)


def bind_unix_stream(config: UnixStream) -> BoundSocket:
    return _bind_unix(Path(config.path), socket.SOCK_STREAM, FileAccess.of(config), STREAM_SETTING, _INPUT_BACKLOG)


def bind_tcp(config: Tcp) -> BoundSocket:
    return BoundSocket(_listen_tcp(HostPort(config.host, config.port), TCP_SETTING, _INPUT_BACKLOG))


def bind_http(config: Http) -> BoundSocket:
    address = config.address
    if isinstance(address, HostPort):
        return BoundSocket(_listen_tcp(address, HTTP_SETTING, _SMALL_BACKLOG))
    return _bind_unix(Path(address.path), socket.SOCK_STREAM, FileAccess.of(config), HTTP_SETTING, _SMALL_BACKLOG)


def bind_hold_socket(path: Path) -> BoundSocket:
    return _bind_unix(path, socket.SOCK_SEQPACKET, FileAccess(mode=0o600), HOLD_NAME, _SMALL_BACKLOG)


def _listen_tcp(address: HostPort, setting: str, backlog: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, numeric_address = addresses[0]
        return socket.create_server(numeric_address, family=family, backlog=backlog)
    except OSError as error:
        raise StartError(f'{setting} = "{address}" cannot be used: {_tcp_remedy(error)}') from error


def _tcp_remedy(error: OSError) -> str:
    remedies = {
        errno.EADDRINUSE: "another program listens there; stop it or choose another port.",
        errno.EADDRNOTAVAIL: "this host has no such address; choose an address of this host, as 127.0.0.1.",
        errno.EACCES: "a port below 1024 needs a privilege; choose a higher one.",
    }
    return remedies.get(error.errno or 0, f"{error.strerror}.")


class FileAccess(NamedTuple):
    """Configured mode, owner and group of a socket file; None leaves the choice to the umask or the kernel."""

    mode: int | None = None
    user: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, config: UnixDatagram | UnixStream | Http) -> FileAccess:
        return cls(config.mode, config.user, config.group)


def _bind_unix(path: Path, kind: SocketKind, access: FileAccess, setting: str, backlog: int = 0) -> BoundSocket:
    """Bind a UNIX socket of this kind to `path`, and listen on it if `backlog` is not 0."""
    owner = _owner_of(access, setting)
    _remove_stale(path, kind, setting)
    bound = socket.socket(socket.AF_UNIX, kind)
    if kind is socket.SOCK_DGRAM:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel adds the sender's credentials
    try:
        with _umask_for(access.mode if owner is None else 0):  # `_set_owner` replaces the mode 0
            bound.bind(str(path))
        if owner is not None:
            with _removed_on_failure(path):
                _set_owner(path, owner, access.mode)
        if backlog:
            bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise StartError(_describe_failure(path, setting, error)) from error
    return BoundSocket(bound, path, path.lstat())


def _owner_of(access: FileAccess, setting: str) -> tuple[int, int] | None:
    """Return the uid and gid for `chown`, -1 for an id that is not configured, or None if neither is configured."""
    if access.user is None and access.group is None:
        return None
    try:
        user = -1 if access.user is None else uid_of(access.user)
        group = -1 if access.group is None else gid_of(access.group)
    except KeyError as error:
        section = setting.rpartition(".")[0]
        raise StartError(
            f"{section}: there is no such user or group: {error.args[0]}; create it or name another."
        ) from error
    return user, group


def _set_owner(path: Path, owner: tuple[int, int], mode: int | None) -> None:
    """Set the owner of a socket file, and then its mode.

    All calls use one descriptor, because another program may replace the file at the path between two calls.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        opened = Path(f"/proc/self/fd/{descriptor}")
        os.chown(opened, *owner)
        opened.chmod(0o777 & ~_current_umask() if mode is None else mode)
    finally:
        os.close(descriptor)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the socket file if its owner cannot be set: the file still has mode 0, so no client could use it."""
    try:
        yield
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _current_umask() -> int:
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    return mask


@contextmanager
def _umask_for(mode: int | None) -> Iterator[None]:
    """Set the umask in the `with` block so that `bind` creates a file of this mode; None leaves the umask as it is."""
    if mode is None:
        yield
        return
    umask_before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(umask_before)


def _remove_stale(path: Path, kind: SocketKind, setting: str) -> None:
    """Remove a socket file at `path` that no process serves. Raise StartError if another file is there."""
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode):
            raise StartError(f'{setting} = "{path}": the file is not a socket; remove it or choose another path.')
        if _is_served(path, kind):
            raise StartError(f'{setting} = "{path}": another program receives there; stop it or choose another path.')
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(_describe_failure(path, setting, error)) from error


def _is_served(path: Path, kind: SocketKind) -> bool:
    """Return True if a process has a socket open that is bound to `path`."""
    try:
        return _can_connect(path, kind)
    except PermissionError:
        if path.lstat().st_uid != os.geteuid():
            raise
    with _writable_by_owner(path):
        return _can_connect(path, kind)


def _can_connect(path: Path, kind: SocketKind) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            # EPROTOTYPE: a socket of another kind is served there. EAGAIN: its process is busy.
            if error.errno not in {errno.EPROTOTYPE, errno.EAGAIN}:
                raise
        return True


@contextmanager
def _writable_by_owner(path: Path) -> Iterator[None]:
    """Give the owner of a socket file, which is the daemon's user, write permission in the `with` block.

    A killed daemon leaves a file without it if the configured mode has none, or if the kill came before `_set_owner`.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        opened, mode = Path(f"/proc/self/fd/{descriptor}"), stat.S_IMODE(os.fstat(descriptor).st_mode)
        opened.chmod(mode | stat.S_IWUSR)  # other users keep their access, because the file may be served
        try:
            yield
        finally:
            # A daemon that is starting may have set the file's final mode.
            if stat.S_IMODE(os.fstat(descriptor).st_mode) == mode | stat.S_IWUSR:
                opened.chmod(mode)
    finally:
        os.close(descriptor)


def _describe_failure(path: Path, setting: str, error: OSError) -> str:
    remedies = {
        errno.ENOENT: f"there is no directory {path.parent}; create it or choose another path.",
        errno.ENOTDIR: f"{path.parent} is not a directory; choose another path.",
        errno.EACCES: f"the daemon's user must be allowed to write to {path.parent} and to the socket there.",
        errno.EADDRINUSE: "another program has just taken the path; stop it or choose another path.",
        errno.EPERM: "only root may give a file to another user, or to a group that the daemon's user is not in.",
    }
    return f'{setting} = "{path}" cannot be used: {remedies.get(error.errno or 0, f"{error.strerror}.")}'
