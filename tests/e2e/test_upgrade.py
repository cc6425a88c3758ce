"""`bruce upgrade` under load: the daemon continues with other code in the same process, unnoticed by senders."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.cli.commands import main
from bruce_mp.client import StreamClient
from bruce_mp.protocol.client.discard_line import parse_line
from bruce_mp.slab.file import Slab, create_slab
from bruce_mp.slab.layout import LAYOUT_VERSION
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeStage, read_note
from support.daemon import Daemon
from support.daemon_runs import Sender
from support.installation import PACKAGE, Installation
from support.journals import journal_of
from support.processes import run_bruce, wait_until
from support.read_back import broker_fixture, read_back, values_in, wait_for_records
from support.stream_inputs import ONE_WORKER, daemon_in
from support.traffic import Load, assert_all_there

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green")
BLOCKING: Final = {"input.unix_datagram.when_full": "block"}
ENDLESS: Final = Load(TOPICS, senders=1, messages=10**9, largest=300)
WITHIN_S: Final = 90
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 2))


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "installed")


@pytest.fixture
def daemon(tmp_path: Path, broker: DevBroker, installed: Installation) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, broker.bootstrap, BLOCKING)
    daemon.start(installed.path)
    with daemon.checked_at_end():
        yield daemon


def upgrade(daemon: Daemon, package: Path = PACKAGE.parent) -> subprocess.CompletedProcess[str]:
    """Run `bruce upgrade` of the code in a directory."""
    return run_bruce("upgrade", "--config", daemon.config_path, PYTHONPATH=str(package), PYTHONSAFEPATH="1")


def wait_for_stage(daemon: Daemon, stage: UpgradeStage) -> None:
    wait_until(lambda: (note := read_note(daemon.run_dir)) is not None and note.stage is stage, stage)


def assert_arrived(sender: Sender, load: Load, daemon: Daemon, broker: DevBroker) -> None:
    """Check that no message is lost or doubled, and no error occurred."""
    assert sender.refusal is None
    books = daemon.wait_settled(load.total)
    assert (books.received, books.delivered) == (load.total, load.total)
    assert_all_there(load, read_back(broker, TOPICS))


def test_successive_upgrades_under_load_lose_nothing(
    tmp_path: Path, broker: DevBroker, installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, broker.bootstrap, BLOCKING)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon.start(installed.path)
        sender = Sender(ENDLESS, daemon.socket_path, pause_s=0.002)
        sender.start()
        supervisor = psutil.Process(daemon.pid)
        descriptors = []
        with daemon.checked_at_end():
            for number in range(1, 3):
                daemon.wait_received(number * 100)
                if number == 2:  # the last daemon delivers the held messages
                    broker.broker_down(1)
                upgrade_to(f"9.0.{number}", daemon, installed)
                broker.broker_up(1)
                daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 30)
                descriptors.append(min(descriptor_counts(supervisor)))
            load = sender.stop()
            assert_arrived(sender, load, daemon, broker)
            wait_until(lambda: not has_zombie(supervisor), "the supervisor to reap all processes")
            assert len(set(descriptors)) == 1, descriptors
            assert daemon.terminate() == 0
        assert not daemon.socket_path.exists()
        assert not daemon.slab_path.exists()
        words = [systemd.recv(100).decode().partition("\n")[0] for _ in range(6)]
    assert words == ["READY=1", *["RELOADING=1", "READY=1"] * 2, "STOPPING=1"]


def descriptor_counts(supervisor: psutil.Process) -> Iterator[int]:
    """Yield the number of open descriptors for a while; the start of a process needs another one for a moment."""
    for _ in range(50):
        yield supervisor.num_fds()
        time.sleep(0.01)


def has_zombie(supervisor: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # one has just been reaped
        return any(each.status() == psutil.STATUS_ZOMBIE for each in supervisor.children())
    return True


def upgrade_to(version: str, daemon: Daemon, installed: Installation) -> None:
    """Upgrade, and check that all processes have this version in the same supervisor process."""
    old = daemon.pids()
    installed.set_version(version)
    done = upgrade(daemon, installed.path)
    assert done.returncode == 0, done.stderr + daemon.log()
    assert re.fullmatch(rf"bruce \S+ -> {version}: nothing was received for \d+ ms; .*\n", done.stdout)
    info = daemon.get("/server_info/json")
    assert (info["version"], info["pid"]) == (version, daemon.pid)
    assert not set(old.values()) & set(daemon.pids().values())


def test_an_upgrade_to_broken_code_or_config_is_refused(daemon: Daemon, installed: Installation) -> None:
    before = daemon.pids()
    right = daemon.config_path.read_text()
    daemon.config_path.write_text(right + "\n[compression]\nsise = 1\n")
    os.kill(daemon.pid, signal.SIGUSR2)
    wait_for_stage(daemon, UpgradeStage.REFUSED)
    note = read_note(daemon.run_dir)
    assert note is not None
    assert "sise" in note.reason
    daemon.config_path.write_text(right)

    installed.break_module("router/metadata_fetch.py")
    done = upgrade(daemon)
    assert done.returncode == 1
    assert "keeps running: it would not start: " in done.stderr
    assert "ImportError: half installed" in done.stderr

    daemon.send("red", b"still here")
    daemon.wait_settled(1)
    assert set(before.values()) <= set(daemon.pids().values())  # a starting process has another title

    # A SIGTERM during the check of the new code acts as usual.
    number = note.number
    os.kill(daemon.pid, signal.SIGUSR2)
    wait_until(lambda: (note := read_note(daemon.run_dir)) is not None and note.number > number + 1, "the upgrade")
    assert daemon.terminate() == 0
    assert not daemon.slab_path.exists()


def test_an_upgrade_to_another_layout_drains_the_slab_first(
    daemon: Daemon, broker: DevBroker, installed: Installation
) -> None:
    sender = Sender(ENDLESS, daemon.socket_path, pause_s=0.002)
    sender.start()
    daemon.wait_received(150)
    installed.set_version("9.2.0")
    installed.set_layout(LAYOUT_VERSION + 1)
    done = upgrade(daemon, installed.path)
    assert done.returncode == 0, done.stderr + daemon.log()
    assert "first delivers the held messages" in done.stderr
    load = sender.stop()
    assert sender.refusal is None
    wait_for_records(broker, load.total)
    assert_all_there(load, read_back(broker, TOPICS))
    assert "moved to" not in daemon.log()
    assert daemon.terminate() == 0


@pytest.mark.parametrize("sync", ["off", "interval"])
def test_a_rollback_to_another_layout_without_kafka_names_the_remedy(
    tmp_path: Path, broker: DevBroker, installed: Installation, sync: str
) -> None:
    """The old code does not read the slab, so the messages wait in a renamed file, and perhaps in the journal."""
    daemon = Daemon(tmp_path, broker.bootstrap, {"delivery.shutdown_max_delay_ms": 500, "slab.sync": sync})
    daemon.start(installed.path)
    values = [b"%d" % number for number in range(5)]
    with daemon.checked_at_end():
        broker.broker_down(1)
        daemon.send("red", *values)
        daemon.wait_received(5)
        installed.set_version("1.0.0")
        installed.set_layout(1)
        assert upgrade(daemon, installed.path).returncode == 0, daemon.log()
        assert "5 messages could not be delivered." in daemon.log()
        assert "next start delivers" not in daemon.log()
        assert f"does not read layout version {LAYOUT_VERSION}: it renames the slab {daemon.slab_path}" in daemon.log()
        [aside] = tmp_path.glob(f"slab.version-{LAYOUT_VERSION}-*")
        out = tmp_path / "out"
        assert main(["slab", "export", str(aside), "--output", str(out)]) == 0
        assert [parse_line(line).value for line in out.read_bytes().splitlines(keepends=True)] == values
        broker.broker_up(1)
        restored = 5 if sync == "interval" else 0
        assert daemon.wait_settled(restored).delivered == restored
    assert sorted(values_in(broker, "red")) == values[:restored]


def test_shutdown_while_the_slab_drains_receives_queued_messages(
    daemon: Daemon, broker: DevBroker, installed: Installation
) -> None:
    """The old inputs have ended, and senders still succeed: the kernel queues their messages for the new code."""
    supervisor = psutil.Process(daemon.pid)
    values = [b"%d" % number for number in range(8)]
    daemon.send("red", values[0])
    daemon.wait_settled(1)  # a dispatcher of the old code delivers it: none can be started later
    broker.broker_down(1)
    daemon.send("red", *values[1:5])
    daemon.wait_received(5)
    installed.set_layout(LAYOUT_VERSION + 1)
    os.kill(daemon.pid, signal.SIGUSR2)
    daemon.wait_for(lambda: "Process input has ended" in daemon.log(), "the input's end", WITHIN_S)
    daemon.send("red", *values[5:])
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.wait_for(
        lambda: "the new code receives the messages" in daemon.log(), "the supervisor to hear of it", WITHIN_S
    )
    broker.broker_up(1)
    assert supervisor.wait(WITHIN_S) in {0, None}
    assert sorted(values_in(broker, "red")) == values
    assert not daemon.slab_path.exists()
    assert not daemon.socket_path.exists()


def test_shutdown_while_the_slab_drains_exits_with_0_if_the_new_code_cannot_be_executed(
    tmp_path: Path, broker: DevBroker, installed: Installation
) -> None:
    """With another exit status supervisord would start the daemon again after the requested shutdown."""
    installed.break_execution()
    daemon = Daemon(tmp_path, broker.bootstrap).start(installed.path)
    with daemon.checked_at_end():
        daemon.send("red", b"delivered")
        daemon.wait_settled(1)  # a dispatcher of the old code delivers it: none can be started later
        broker.broker_down(1)
        daemon.send("red", b"held")
        daemon.wait_received(2)
        installed.set_layout(LAYOUT_VERSION + 1)
        os.kill(daemon.pid, signal.SIGUSR2)
        daemon.wait_for(lambda: "Process input has ended" in daemon.log(), "the input's end", WITHIN_S)
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.wait_for(lambda: "Shutdown requested" in daemon.log(), "the supervisor to hear of it", WITHIN_S)
        broker.broker_up(1)
        assert daemon.wait() == 0
    assert "it cannot be executed: No such file or directory" in daemon.log()
    assert not daemon.slab_path.exists()
    assert not daemon.socket_path.exists()


def test_an_upgrade_delivers_what_a_replaced_slab_holds(daemon: Daemon, broker: DevBroker) -> None:
    broker.broker_down(1)
    daemon.send("red", b"held")
    daemon.wait_received(1)
    geometry = Slab(daemon.slab_path).geometry
    daemon.slab_path.unlink()
    create_slab(daemon.slab_path, geometry, 0)
    os.kill(daemon.pid, signal.SIGUSR2)
    daemon.wait_for(lambda: "Shutting down" in daemon.log(), "the end to begin", WITHIN_S)
    broker.broker_up(1)
    wait_for_stage(daemon, UpgradeStage.DONE)
    assert values_in(broker, "red") == [b"held"]


def test_an_upgrade_with_closed_standard_streams_keeps_the_slab(tmp_path: Path, broker: DevBroker) -> None:
    """With standard error closed, the slab would get its descriptor, and new code could write an error there."""
    daemon = Daemon(tmp_path, broker.bootstrap)
    daemon.prefix = ("/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh")
    daemon.start()
    with daemon.checked_at_end():
        broker.broker_down(1)
        daemon.send("red", b"held")
        daemon.wait_received(1)
        daemon.upgrade()
        broker.broker_up(1)
        daemon.wait_settled(1)
    assert values_in(broker, "red") == [b"held"]


def test_a_daemon_in_shutdown_is_not_upgraded(daemon: Daemon, broker: DevBroker) -> None:
    """The socket is closed to senders: the new code would receive nothing and never be stopped."""
    supervisor = psutil.Process(daemon.pid)
    broker.broker_down(1)
    daemon.send("red", b"held")
    daemon.wait_received(1)
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.wait_for(lambda: "Shutting down" in daemon.log(), "the end to begin", WITHIN_S)
    os.kill(daemon.pid, signal.SIGUSR2)
    wait_for_stage(daemon, UpgradeStage.REFUSED)
    broker.broker_up(1)
    assert supervisor.wait(WITHIN_S) in {0, None}
    assert values_in(broker, "red") == [b"held"]
    assert not daemon.slab_path.exists()


def test_a_supervisor_killed_during_an_upgrade_loses_nothing(
    tmp_path: Path, broker: DevBroker, installed: Installation
) -> None:
    """The socket belongs to a service manager; the daemon's own would die with it and lose its queue."""
    daemon = Daemon(tmp_path, broker.bootstrap, BLOCKING)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(daemon.socket_path))
        daemon.handed_over["bruce.socket"] = opened
        daemon.start(installed.path)
        sender = Sender(ENDLESS, daemon.socket_path, pause_s=0.002)
        sender.start()
        with daemon.checked_at_end():
            for stage in (UpgradeStage.CHECKING, UpgradeStage.TAKING_OVER):
                daemon.wait_received(100)
                os.kill(daemon.pid, signal.SIGUSR2)
                wait_for_stage(daemon, stage)
                daemon.kill_supervisor()
                daemon.start(installed.path)
            assert upgrade(daemon).returncode == 0
            assert_arrived(sender, sender.stop(), daemon, broker)
        assert daemon.socket_path.is_socket()


def test_stream_connections_survive_an_upgrade(tmp_path: Path, broker: DevBroker, installed: Installation) -> None:
    daemon = daemon_in(tmp_path, broker, **ONE_WORKER).start(installed.path)
    with daemon.checked_at_end(), StreamClient(daemon.stream_path, timeout=30) as client:
        client.send("red", b"before")
        client.flush()
        assert upgrade(daemon).returncode == 0
        client.send("red", b"after")
        client.flush()
        daemon.wait_settled(2)
    assert sorted(values_in(broker, "red")) == [b"after", b"before"]


def test_an_upgrade_that_ends_the_journal_leaves_no_file_of_the_old_code(
    tmp_path: Path, broker: DevBroker, installed: Installation
) -> None:
    """A file that stayed would replace a later slab after a power failure."""
    daemon = Daemon(tmp_path, broker.bootstrap)
    daemon.configure({"slab.sync": "interval", "slab.sync_interval_ms": 20})
    installed.rewrite_journals()
    daemon.start(installed.path)
    with daemon.checked_at_end():
        journal = journal_of(daemon.slab_path)
        daemon.wait_for(journal.exists, "the journal", WITHIN_S)
        daemon.configure({"slab.sync": "off"})
        assert upgrade(daemon).returncode == 0
        assert not journal.parent.exists()


def test_the_upgrade_command_reports_an_absent_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "127.0.0.1:1")
    done = upgrade(daemon)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bruce: No daemon uses the run directory {daemon.run_dir}.")
