"""`bruce hold` keeps the sockets: clients notice neither kills of the whole daemon nor restarts of `bruce hold`."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.slab.layout import LAYOUT_VERSION
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeStage, read_note
from support.daemon import Daemon
from support.daemon_runs import Sender, run_until_exit
from support.hold import Hold
from support.installation import Installation
from support.processes import wait_until
from support.read_back import broker_fixture, read_back, values_in, wait_for_records
from support.traffic import Load, assert_all_there

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green")
KEPT: Final = "bruce hold keeps the listening sockets open."
KILLS: Final = int(os.environ.get("BRUCE_HOLD_KILLS", "3"))
ENDLESS: Final = Load(TOPICS, senders=1, messages=10**9, largest=300)
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 2))


@pytest.fixture
def daemon(tmp_path: Path, broker: DevBroker) -> Daemon:
    """Return a daemon that is not started, with its settings in the file that `bruce hold` reads too."""
    daemon = Daemon(tmp_path, broker.bootstrap)
    streams = {"input.unix_stream.enable": True, "input.unix_stream.path": str(daemon.stream_path)}
    daemon.configure({"input.unix_datagram.when_full": "block", **streams})
    return daemon


def connect_stream(daemon: Daemon) -> None:
    """Connect as a stream client; a refusal raises an error."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(daemon.stream_path))


def finish(daemon: Daemon, broker: DevBroker, sender: Sender) -> None:
    """Stop the sender, and compare all records with what it sent."""
    load = sender.stop()
    wait_for_records(broker, load.total, 120)
    books = daemon.wait_settled(load.total)
    assert sender.refusal is None
    assert (books.received, books.delivered) == (load.total, load.total)
    assert_all_there(load, read_back(broker, TOPICS))


def request_refused_upgrade(daemon: Daemon) -> None:
    """Request an upgrade, and wait until the daemon has refused it."""
    os.kill(daemon.pid, signal.SIGUSR2)
    wait_until(
        lambda: (note := read_note(daemon.run_dir)) is not None and note.stage is UpgradeStage.REFUSED, "the refusal"
    )


def test_hold_loses_nothing_when_everything_of_the_daemon_is_killed(daemon: Daemon, broker: DevBroker) -> None:
    sender = Sender(ENDLESS, daemon.socket_path, pause_s=0.002)
    with Hold(daemon.config_path), daemon:
        sender.start()
        for kill in range(KILLS):
            daemon.wait_received(60 * (kill + 1))
            daemon.kill_all()
            connect_stream(daemon)
            daemon.start()
        finish(daemon, broker, sender)


def test_hold_gets_the_sockets_of_a_running_daemon_when_it_starts_again(daemon: Daemon, broker: DevBroker) -> None:
    sender = Sender(ENDLESS, daemon.socket_path, pause_s=0.002)
    hold = Hold(daemon.config_path)
    with daemon:
        sender.start()
        for end in (hold.terminate, hold.kill):
            hold.start("gets the sockets from it")
            hold.wait_for("keeps the daemon's sockets open")
            daemon.wait_received(daemon.books().received + 60)
            daemon.kill_all()
            connect_stream(daemon)
            kept = daemon.log().count(KEPT)
            daemon.start()
            daemon.wait_for(lambda: daemon.log().count(KEPT) > kept, "the daemon's link to bruce hold", 10)  # noqa: B023
            end()
            connect_stream(daemon)
        finish(daemon, broker, sender)
        ended = "bruce hold has ended: the listening sockets end with the daemon"
        daemon.wait_for(lambda: ended in daemon.log(), "the notice of its end", 10)
        assert daemon.terminate() == 0
    assert not daemon.socket_path.exists()


def test_hold_passes_waiting_messages_to_the_next_daemon_after_a_shutdown(daemon: Daemon, broker: DevBroker) -> None:
    with Hold(daemon.config_path) as hold, DatagramClient(daemon.socket_path, timeout=0) as client:
        client.send("red", b"before")
        with daemon:
            daemon.wait_settled(1)
            assert daemon.terminate() == 0
            client.send("red", b"between")
            daemon.start()
            daemon.wait_settled(1)
            assert daemon.terminate() == 0
        client.send("red", b"never")
        assert hold.terminate() == 0
        assert "Datagrams wait in the socket, and are lost with it" in hold.log
    assert not daemon.socket_path.exists()
    assert sorted(values_in(broker, "red")) == [b"before", b"between"]


def test_a_removed_socket_file_is_back_after_a_restart_beside_hold(daemon: Daemon, broker: DevBroker) -> None:
    with Hold(daemon.config_path), daemon:
        daemon.socket_path.unlink()
        daemon.wait_for(lambda: "is gone or was replaced" in " ".join(daemon.health()["problems"]), "the problem", 15)
        assert daemon.terminate() == 0
        daemon.start()
        daemon.send("red", b"hello")
        daemon.wait_settled(1)
        assert daemon.health()["problems"] == []
    assert values_in(broker, "red") == [b"hello"]


def test_hold_leaves_the_socket_files_to_a_daemon_without_a_pid_file(daemon: Daemon) -> None:
    hold = Hold(daemon.config_path)
    with daemon:
        hold.start("gets the sockets from it")
        hold.wait_for("keeps the daemon's sockets open")
        (daemon.run_dir / "supervisor.pid").unlink()
        assert hold.terminate() == 0
        assert "the daemon keeps its sockets open while it runs" in hold.log
        assert daemon.socket_path.is_socket()


def test_hold_opens_the_sockets_of_a_changed_file_when_a_daemon_starts(daemon: Daemon, tmp_path: Path) -> None:
    other = tmp_path / "other.dgram"
    with Hold(daemon.config_path) as hold:
        assert daemon.socket_path.is_socket()
        daemon.configure({"input.unix_datagram.path": str(other)})
        with daemon, DatagramClient(other, timeout=0) as client:
            assert not daemon.socket_path.exists()
            daemon.kill_all()
            client.send("red", b"to the held socket")
            daemon.start()
            daemon.wait_settled(1)
        assert hold.terminate() == 0


def test_hold_binds_a_socket_again_when_its_file_has_been_removed(daemon: Daemon, broker: DevBroker) -> None:
    with Hold(daemon.config_path) as hold, daemon:
        daemon.terminate()
        daemon.socket_path.unlink()
        daemon.start()
        with DatagramClient(daemon.socket_path, timeout=0) as client:
            client.send("red", b"to the new file")
        daemon.wait_settled(1)
        assert daemon.terminate() == 0
        assert hold.terminate() == 0
    assert not daemon.socket_path.exists()
    assert [record.value for records in broker.fetch("red") for record in records] == [b"to the new file"]


def test_hold_keeps_the_sockets_when_the_code_of_an_upgrade_cannot_be_executed(
    daemon: Daemon, broker: DevBroker, tmp_path: Path
) -> None:
    """The daemon continues if the new code has the same layout; else it has drained its slab, and ends."""
    installed = Installation(tmp_path / "installed")
    installed.break_execution()
    with Hold(daemon.config_path) as hold, DatagramClient(daemon.socket_path, timeout=0) as client:
        with daemon.checked_at_end():
            daemon.start(installed.path)
            request_refused_upgrade(daemon)
            assert (daemon.socket_path.is_socket(), daemon.stream_path.is_socket()) == (True, True)
            client.send("red", b"to the same daemon")
            daemon.wait_settled(1)
            installed.set_layout(LAYOUT_VERSION + 1)
            os.kill(daemon.pid, signal.SIGUSR2)
            assert daemon.wait() == 1
        assert (daemon.socket_path.is_socket(), daemon.stream_path.is_socket()) == (True, True)
        client.send("red", b"to the held socket")
        connect_stream(daemon)
        daemon.start()
        with daemon.checked_at_end():
            daemon.wait_settled(1)
            assert daemon.terminate() == 0
        assert hold.terminate() == 0
    assert not daemon.socket_path.exists()
    assert sorted(values_in(broker, "red")) == [b"to the held socket", b"to the same daemon"]


def test_without_hold_a_drained_daemon_removes_its_sockets_and_names_the_loss(daemon: Daemon, tmp_path: Path) -> None:
    """Messages that wait in the sockets, for the new code that cannot be executed, end with the sockets."""
    installed = Installation(tmp_path / "installed")
    installed.break_execution()
    daemon.start(installed.path)
    with daemon.checked_at_end(), DatagramClient(daemon.socket_path, timeout=0) as client:
        installed.set_layout(LAYOUT_VERSION + 1)
        status = psutil.Process(daemon.pids()["status"])
        status.suspend()  # the daemon waits for its status process, which ends last
        os.kill(daemon.pid, signal.SIGUSR2)
        daemon.wait_for(lambda: "Process input has ended" in daemon.log(), "the input's end", 90)
        client.send("red", b"lost")
        status.resume()
        assert daemon.wait() == 1
    assert (daemon.socket_path.exists(), daemon.stream_path.exists()) == (False, False)
    assert "it cannot be executed: No such file or directory" in daemon.log()
    assert "Datagrams wait in the socket for the new code, and are lost with the socket." in daemon.log()


def test_a_daemon_is_refused_when_hold_has_another_configuration(daemon: Daemon, tmp_path: Path) -> None:
    with Hold(daemon.config_path):
        ended = run_until_exit(daemon.config_path, {"input.unix_datagram.path": tmp_path / "elsewhere"})
        assert daemon.socket_path.is_socket()
    assert ended.code == 1
    assert f"No setting names the socket at unix:{daemon.socket_path} that bruce hold passes" in ended.text
    assert "Start it with the daemon's configuration" in ended.text


def test_a_second_hold_is_refused(daemon: Daemon) -> None:
    with Hold(daemon.config_path) as first:
        second = Hold(daemon.config_path)
        with pytest.raises(AssertionError, match="another program receives there"):
            second.start()
        assert first.terminate() == 0
