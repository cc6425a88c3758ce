from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.inputs import Tcp, UnixDatagram, UnixStream
from bruce_mp.config.sections import Http
from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets import datagram_limits
from bruce_mp.supervisor.sockets.bound_sockets import bind_datagrams, bind_http, bind_tcp, bind_unix_stream
from support.as_user import STRANGERS, unprivileged_directory

if TYPE_CHECKING:
    from pathlib import Path
    from socket import SocketKind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dgram"


def leave(path: Path, kind: SocketKind = socket.SOCK_DGRAM) -> None:
    """Create a socket file of a dead process."""
    with socket.socket(socket.AF_UNIX, kind) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("mode", [0o600, 0o620, 0o666, 0o777])
def test_the_socket_file_has_the_configured_mode(path: Path, mode: int) -> None:
    umask = os.umask(0o022)
    with bind_datagrams(UnixDatagram(path=str(path), mode=mode)).socket:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert os.umask(umask) == 0o022


def test_the_umask_applies_without_a_mode(path: Path) -> None:
    umask = os.umask(0o027)
    with bind_datagrams(UnixDatagram(path=str(path))).socket:
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
    os.umask(umask)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_socket_file_of_a_dead_process_is_replaced(path: Path, kind: SocketKind) -> None:
    leave(path, kind)
    with (
        bind_datagrams(UnixDatagram(path=str(path))).socket as bound,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.sendto(b"hello", str(path))
        assert bound.recv(10) == b"hello"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_socket_of_a_live_process_is_not_replaced(path: Path, kind: SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as living:
        living.bind(str(path))
        if kind == socket.SOCK_STREAM:
            living.listen()
        with pytest.raises(StartError, match=r"input.unix_datagram.path = .*another program receives there; stop"):
            bind_datagrams(UnixDatagram(path=str(path)))
    assert path.is_socket()


@pytest.mark.parametrize("mode", [0, 0o020])
def test_the_socket_file_of_a_dead_process_is_replaced_without_permission_for_its_owner(mode: int) -> None:
    with unprivileged_directory() as directory:
        path = directory / "stream"
        leave(path)
        path.chmod(mode)
        with bind_unix_stream(UnixStream(path=str(path), mode=0o020)).socket:
            assert stat.S_IMODE(path.stat().st_mode) == 0o020


def test_the_socket_of_a_live_process_keeps_its_mode_without_permission_for_its_owner() -> None:
    with unprivileged_directory() as directory:
        config = UnixStream(path=str(directory / "stream"), mode=0o022)
        with bind_unix_stream(config).socket, pytest.raises(StartError, match="another program receives there; stop"):
            bind_unix_stream(config)
        assert stat.S_IMODE((directory / "stream").stat().st_mode) == 0o022


@pytest.mark.skipif(not STRANGERS, reason="only root can create a file of another user")
def test_a_socket_file_of_another_user_without_permission_is_refused() -> None:
    with unprivileged_directory() as directory:
        path, stranger = directory / "stream", os.geteuid()
        os.seteuid(0)
        leave(path)
        path.chmod(0o600)
        os.seteuid(stranger)
        with pytest.raises(StartError, match="the daemon's user must be allowed to write to"):
            bind_unix_stream(UnixStream(path=str(path)))
        assert path.is_socket()


def test_a_socket_file_that_was_removed_or_replaced_is_lost(path: Path) -> None:
    bound = bind_datagrams(UnixDatagram(path=str(path)))
    kept_by_hold = bound._replace(path=None, file_status=None)
    managed = bound._replace(is_ours=False)
    with bound.socket:
        assert [each.lost_file() for each in (bound, kept_by_hold, managed)] == [None, None, None]
        path.unlink()
        assert [each.lost_file() for each in (bound, kept_by_hold, managed)] == [path, path, path]
        leave(path)
        assert [each.lost_file() for each in (bound, kept_by_hold, managed)] == [path, None, path]
    tcp = bind_tcp(Tcp(port=0))
    with tcp.socket:
        assert tcp.lost_file() is None


def test_a_file_that_is_not_a_socket_is_not_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(StartError, match="the file is not a socket; remove it or choose another path"):
        bind_datagrams(UnixDatagram(path=str(path)))
    assert path.read_text() == "precious"


def test_a_missing_directory_is_named(path: Path) -> None:
    with pytest.raises(StartError, match=f"there is no directory {path}; create it"):
        bind_datagrams(UnixDatagram(path=str(path / "dgram")))


def test_only_the_daemons_own_socket_file_is_removed(path: Path) -> None:
    bound = bind_datagrams(UnixDatagram(path=str(path)))
    with bound.socket:
        path.rename(path.with_name("moved"))
        leave(path)
        bound.remove_file()
        assert path.exists()
        path.with_name("moved").rename(path)
        bound.remove_file()
        assert not path.exists()
        bound.remove_file()


def test_a_socket_file_that_cannot_be_removed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with unprivileged_directory() as directory:
        bound = bind_datagrams(UnixDatagram(path=str(directory / "dgram")))
        with bound.socket:
            directory.chmod(0o500)
            bound.remove_file()
            directory.chmod(0)
            bound.remove_file()
            directory.chmod(0o700)
    assert caplog.text.count("dgram cannot be removed: Permission denied.") == 2


def test_a_port_that_is_in_use_is_named() -> None:
    with bind_http(Http(listen="127.0.0.1:0")).socket as first:
        port = first.getsockname()[1]
        with pytest.raises(
            StartError, match=rf'http.listen = "127.0.0.1:{port}" .*: another program listens there; stop'
        ):
            bind_http(Http(listen=f"127.0.0.1:{port}"))


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(StartError, match=r'http.listen = "192.0.2.1:0" cannot be used: this host has no such address'):
        bind_http(Http(listen="192.0.2.1:0"))


def test_the_pages_can_be_served_on_a_unix_socket(path: Path) -> None:
    bound = bind_http(Http(listen=f"unix:{path}", mode=0o620))
    with bound.socket, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o620
        bound.remove_file()
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o600, 0o662, None])
def test_a_socket_file_changes_its_owner_before_it_is_accessible(
    path: Path, mode: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    chown = os.chown

    def look_and_chown(itself: Path, user: int, group: int) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        chown(itself, user, group)

    monkeypatch.setattr(os, "chown", look_and_chown)
    umask = os.umask(0o022)
    user, group = (str(os.getuid() or 65534), str(os.getgid() or 65534))
    with bind_unix_stream(UnixStream(path=str(path), mode=mode, user=user, group=group)).socket:
        found = path.stat()
    os.umask(umask)
    assert seen == [0]
    assert (str(found.st_uid), str(found.st_gid)) == (user, group)
    assert stat.S_IMODE(found.st_mode) == (0o755 if mode is None else mode)


def test_a_socket_file_whose_owner_cannot_be_changed_is_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not you")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(StartError, match="only root may give a file to another user"):
        bind_unix_stream(UnixStream(path=str(path), user="0"))
    assert not path.exists()


@pytest.mark.parametrize(
    ("user", "group"),
    [("nobody-at-all", None), ("99999999999", None), ("4294967295", None), (None, "99999999999"), (None, "4294967295")],
)
def test_unknown_users_and_groups_are_reported(path: Path, user: str | None, group: str | None) -> None:
    with pytest.raises(StartError, match=rf"input.unix_stream: there is no such user or group: .*{user or group}"):
        bind_unix_stream(UnixStream(path=str(path), user=user, group=group))
    assert not path.exists()


def test_a_live_stream_socket_is_not_replaced(path: Path) -> None:
    config = UnixStream(path=str(path))
    with (
        bind_unix_stream(config).socket,
        pytest.raises(StartError, match=r"input.unix_stream.path = .*another program"),
    ):
        bind_unix_stream(config)
    with bind_unix_stream(config).socket as again, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        again.accept()[0].close()


def test_a_tcp_port_in_use_is_named() -> None:
    with bind_tcp(Tcp(port=0)).socket as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(StartError, match=f'input.tcp = "127.0.0.1:{port}" cannot be used: another program listens'):
            bind_tcp(Tcp(port=port))


def test_the_queue_length_is_that_of_the_socket_creation(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagram_limits, "QUEUE_LENGTH_FILE", tmp_path / "qlen")
    (tmp_path / "qlen").write_text("512\n")
    bound = bind_datagrams(UnixDatagram(path=str(path)))
    (tmp_path / "qlen").write_text("10\n")
    with bound.socket:
        assert bound.queue_length == 512
