from __future__ import annotations

import os
import socket
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.config.inputs import Input, Tcp, UnixDatagram, UnixStream
from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets import inherited_sockets
from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSocket, InheritedSockets, sockets_from_manager
from bruce_mp.supervisor.sockets.input_sockets import open_input_sockets
from bruce_mp.supervisor.upgrade.handover import Handover, PassedSocket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTING = "input.unix_datagram.path"


@pytest.fixture
def datagrams(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "in"))
        yield opened


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def configured(path: str) -> Input:
    return Input(unix_datagram=UnixDatagram(path=path))


def place_of(opened: socket.socket) -> str:
    return str(opened.getsockname())


def test_an_inherited_socket_is_assigned_by_its_address(datagrams: socket.socket) -> None:
    intake = open_input_sockets(
        configured(place_of(datagrams)), InheritedSockets([InheritedSocket(datagrams, "bruce.socket")])
    )
    assert intake.datagrams is not None
    assert intake.datagrams.socket is datagrams
    assert intake.datagram_socket_stays_open


def test_an_inherited_socket_outlives_the_daemon(datagrams: socket.socket, tmp_path: Path) -> None:
    intake = open_input_sockets(configured(place_of(datagrams)), InheritedSockets([InheritedSocket(datagrams, "")]))
    intake.refuse_senders()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"later", place_of(datagrams))
    assert datagrams.recv(10) == b"later"


def test_a_socket_named_after_a_setting_may_have_any_address(datagrams: socket.socket, tmp_path: Path) -> None:
    intake = open_input_sockets(
        configured(str(tmp_path / "elsewhere")), InheritedSockets([InheritedSocket(datagrams, SETTING)])
    )
    assert intake.datagrams is not None
    assert intake.datagrams.socket is datagrams
    assert not (tmp_path / "elsewhere").exists()


def test_stream_sockets_are_assigned_by_their_addresses(tmp_path: Path, tcp: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(tmp_path / "stream"))
        unix.listen()
        config = Input(
            unix_datagram=UnixDatagram(enable=False),
            unix_stream=UnixStream(enable=True, path=str(tmp_path / "stream")),
            tcp=Tcp(enable=True, port=tcp.getsockname()[1]),
        )
        intake = open_input_sockets(config, InheritedSockets([InheritedSocket(tcp, "a"), InheritedSocket(unix, "a")]))
        assert intake.unix_stream is not None
        assert intake.tcp is not None
        assert (intake.unix_stream.socket, intake.tcp.socket) == (unix, tcp)
        assert not intake.datagram_socket_stays_open


def test_a_socket_of_another_type_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(tmp_path / "in"))
        unix.listen()
        with pytest.raises(StartError, match=r"^input\.unix_datagram\.path: .* must be a datagram socket"):
            open_input_sockets(configured(str(tmp_path / "in")), InheritedSockets([InheritedSocket(unix, "")]))


def test_a_stream_socket_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(tmp_path / "http"))
        with pytest.raises(StartError, match="must be a listening stream socket"):
            InheritedSockets([InheritedSocket(unix, "")]).claim(
                "http.listen", socket.SOCK_STREAM, UnixPath(str(tmp_path / "http"))
            )


@pytest.mark.parametrize(
    ("is_ours", "is_from_hold", "origin"),
    [(False, False, "the service manager"), (True, True, "bruce hold"), (True, False, "the replaced daemon")],
)
def test_a_refused_socket_is_named_with_its_origin(
    datagrams: socket.socket, *, is_ours: bool, is_from_hold: bool, origin: str
) -> None:
    inherited = InheritedSocket(datagrams, SETTING, is_ours=is_ours, is_from_hold=is_from_hold)
    with pytest.raises(StartError, match=rf"the socket that {origin} passes at .*/in is unusable"):
        inherited.check_kind(SETTING, socket.SOCK_STREAM)


def test_a_socket_without_a_setting_is_refused(datagrams: socket.socket, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^No setting names the socket at .*/in that the service manager passes"):
        open_input_sockets(
            configured(str(tmp_path / "elsewhere")), InheritedSockets([InheritedSocket(datagrams, "bruce.socket")])
        )
    assert not (tmp_path / "elsewhere").exists()


def test_a_socket_reachable_from_other_hosts_is_refused(monkeypatch: pytest.MonkeyPatch, tcp: socket.socket) -> None:
    monkeypatch.setattr("bruce_mp.supervisor.sockets.input_sockets.is_loopback", lambda host: host != "127.0.0.1")
    config = Input(unix_datagram=UnixDatagram(enable=False), tcp=Tcp(enable=True))
    with pytest.raises(StartError, match="which other hosts can reach"):
        open_input_sockets(config, InheritedSockets([InheritedSocket(tcp, "input.tcp")]))


def test_a_socket_of_the_replaced_code_stays_the_daemons_own(datagrams: socket.socket, tmp_path: Path) -> None:
    intake = open_input_sockets(
        configured(place_of(datagrams)), InheritedSockets([InheritedSocket(datagrams, SETTING, is_ours=True)])
    )
    assert not intake.datagram_socket_stays_open
    intake.refuse_senders()
    assert not (tmp_path / "in").exists()


def test_an_own_socket_at_a_formerly_configured_path_is_removed(datagrams: socket.socket, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    intake = open_input_sockets(
        configured(str(elsewhere)), InheritedSockets([InheritedSocket(datagrams, SETTING, is_ours=True)])
    )
    assert elsewhere.is_socket()
    assert not (tmp_path / "in").exists()
    assert intake.datagrams is not None
    intake.datagrams.socket.close()


def test_an_input_reads_the_datagrams_of_a_formerly_configured_path(
    datagrams: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inherited_sockets, "_READ_TIMEOUT_S", 60)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, datagrams.dup() as of_input:
        sender.connect(place_of(datagrams))
        sender.send(b"waits")
        closing = Thread(target=InheritedSockets([InheritedSocket(datagrams, SETTING, is_ours=True)]).close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
        assert of_input.recv(10) == b"waits"
        closing.join()
        with pytest.raises(BrokenPipeError):
            sender.send(b"too late")
    assert caplog.text == ""


def test_datagrams_of_a_formerly_configured_path_that_no_input_reads_are_counted(
    datagrams: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inherited_sockets, "_READ_TIMEOUT_S", 0)
    place = place_of(datagrams)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for value in (b"", b"lost"):
            sender.sendto(value, place)
    InheritedSockets([InheritedSocket(datagrams, SETTING, is_ours=True)]).close()
    assert f"No setting names the socket at unix:{place}: 2 datagrams in it are lost." in caplog.text


def test_an_own_port_chosen_by_the_kernel_is_kept(tcp: socket.socket) -> None:
    ours = InheritedSocket(tcp, "http.listen", is_ours=True)
    bound = InheritedSockets([ours]).claim("http.listen", socket.SOCK_STREAM, HostPort("127.0.0.1", 0))
    assert bound is not None
    assert bound.socket is tcp


def test_sockets_for_another_process_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}.items():
        monkeypatch.setenv(name, value)
    sockets_from_manager().refuse_unclaimed()
    assert "LISTEN_FDS" not in os.environ


def test_a_descriptor_that_is_not_a_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Descriptor 3 of a test process is in use, so the numbers begin at the descriptor of this file.
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr("bruce_mp.supervisor.sockets.inherited_sockets.SD_LISTEN_FDS_START", file.fileno())
        for name, value in {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StartError, match=r"Descriptor \d+ \(without a name\), .* is not a socket"):
            sockets_from_manager()


def test_the_queue_length_is_known_only_for_own_sockets(datagrams: socket.socket) -> None:
    passed = PassedSocket(SETTING, os.dup(datagrams.fileno()), is_ours=True, queue_length=512)
    handover = msgspec.json.decode(msgspec.json.encode(Handover("1.0.0", 0.0, (passed,))), type=Handover)
    ours = open_input_sockets(configured(place_of(datagrams)), handover.inherited_sockets).datagrams
    managers = open_input_sockets(
        configured(place_of(datagrams)), InheritedSockets([InheritedSocket(datagrams, "")])
    ).datagrams
    assert ours is not None
    assert managers is not None
    with ours.socket:
        assert (ours.queue_length, managers.queue_length) == (512, 0)
