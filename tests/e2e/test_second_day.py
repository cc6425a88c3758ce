"""Faults after the first day: late or moved brokers, occupied paths, rotated logs."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.devbroker.control import DevBroker
from support import processes
from support.daemon import Daemon
from support.daemon_runs import run_until_exit
from support.ports import ReservedPort
from support.read_back import broker_fixture, read_back
from support.traffic import Load, assert_all_there, run_senders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green")
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 3))


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a reserved port."""
    reserved = ReservedPort()
    yield reserved.number
    reserved.release()


def send(daemon: Daemon, count: int, topic: str = "red") -> None:
    daemon.send(topic, *(b"%d" % number for number in range(count)))


# --- brokers ---------------------------------------------------------------------------------------------------------


def test_messages_wait_for_a_broker_that_starts_later(tmp_path: Path, broker: DevBroker) -> None:
    """The daemon receives messages, reports the missing broker, and delivers when the broker starts."""
    load = Load(TOPICS, senders=2, messages=500, largest=3000)
    broker.broker_down(1)
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        run_senders(load, daemon.socket_path)
        daemon.wait_for(lambda: daemon.books().received == load.total, "the messages", 20)
        assert sum(daemon.books().held.values()) == load.total
        assert f"Broker {broker.bootstrap} cannot be reached: Connection refused." in daemon.log()
        assert "dispatcher-0" not in daemon.pids()
        counters = daemon.counters()
        assert counters["InitialGetMetadataFail"] == counters["GetMetadataFail"] > 0
        broker.broker_up(1)
        assert daemon.wait_settled(load.total).delivered == load.total
    assert_all_there(load, read_back(broker, TOPICS))


def test_a_whole_cluster_that_returns_on_other_ports_is_found(tmp_path: Path, port: int) -> None:
    """None of the known addresses is left; the one in the bootstrap list is valid for the new cluster."""
    load = Load(TOPICS, senders=2, messages=300, largest=3000)
    with (
        DevBroker(brokers=3, topics=dict.fromkeys(TOPICS, 3)) as broker,
        Daemon(tmp_path, f"127.0.0.1:{port},{broker.bootstrap.split(',')[0]}") as daemon,
    ):
        send(daemon, 100, "red")
        daemon.wait_settled(100)
        for node in (1, 2, 3):
            broker.broker_down(node)
        run_senders(load, daemon.socket_path)
        daemon.wait_for(lambda: "No metadata" in daemon.log(), "the loss of all brokers", 20)
        for node, its_port in ((1, 0), (2, 0), (3, port)):
            broker.broker_up(node, port=its_port)
        assert daemon.wait_settled(load.total + 100).discarded == {}
        arrived = read_back(broker, TOPICS)
    arrived["red"] = [record for record in arrived["red"] if b":" in (record.value or b"")]
    assert_all_there(load, arrived)


def test_one_reachable_bootstrap_server_is_enough(tmp_path: Path, broker: DevBroker, port: int) -> None:
    with Daemon(tmp_path, f"nowhere.invalid:9092,127.0.0.1:{port},{broker.bootstrap}") as daemon:
        send(daemon, 10)
        assert daemon.wait_settled(10).delivered == 10


# --- places that cannot be had ---------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """Return a daemon that is not started, without a broker."""
    return Daemon(tmp_path, "127.0.0.1:1")


def refused(daemon: Daemon, **settings: object) -> str:
    """Return the error of a failed start, which must leave no files behind."""
    ended = run_until_exit(daemon.config_path, {name.replace("__", "."): value for name, value in settings.items()})
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    return ended.text


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "input__unix_datagram__path",
            'input.unix_datagram.path = "{0}" cannot be used: the daemon\'s user must be allowed to write to {1}',
        ),
        ("slab__path", "The slab {0} cannot be created: Permission denied"),
        (
            "daemon__run_dir",
            "run directory {0} cannot be created: Permission denied. Give the daemon's user write permission in {1},",
        ),
    ],
)
def test_an_unwritable_directory_is_reported(daemon: Daemon, setting: str, sentence: str) -> None:
    closed = daemon.directory / "closed"
    closed.mkdir(mode=0o500)
    text = refused(daemon, **{setting: closed / "new"})
    assert sentence.format(closed / "new", closed) in text
    assert not daemon.slab_path.exists()


def test_a_slab_of_the_same_name_does_not_get_the_journal_of_another(tmp_path: Path, broker: DevBroker) -> None:
    shared = tmp_path / "shared"
    for directory in ("first", "second", "shared"):
        (tmp_path / directory).mkdir()
    broker.broker_down(1)
    settings = {"slab.sync": "interval", "slab.journal_dir": shared, "input.streams.spill_dir": shared}
    with Daemon(tmp_path / "first", broker.bootstrap, settings) as first:
        send(first, 10)
        first.wait_received(10)
        first.kill_all()
        second = Daemon(tmp_path / "second", broker.bootstrap)
        text = refused(second, slab__sync="interval", slab__journal_dir=shared)
        assert f"{shared / 'slab.journal'} belongs to the slab {first.slab_path}" in text
        assert "Set slab.journal_dir to another directory, or choose another name in slab.path." in text
        assert not second.slab_path.exists()
        broker.broker_up(1)
        first.start()
        assert first.wait_settled(10).delivered == 10
        assert first.terminate() == 0
    assert list(shared.iterdir()) == []


def test_a_second_daemon_is_refused_and_the_first_undisturbed(tmp_path: Path, broker: DevBroker) -> None:
    """The same run directory, slab or socket: each is refused by its name."""
    for name in ("first", "second", "third", "fourth"):
        (tmp_path / name).mkdir()
    with Daemon(tmp_path / "first", broker.bootstrap) as first, ThreadPoolExecutor(3) as threads:
        others = [Daemon(tmp_path / name, broker.bootstrap) for name in ("second", "third", "fourth")]
        texts = [
            threads.submit(refused, others[0], daemon__run_dir=first.run_dir),
            threads.submit(refused, others[1], slab__path=first.slab_path),
            threads.submit(refused, others[2], input__unix_datagram__path=first.socket_path),
        ]
        run_dir, slab, place = [text.result() for text in texts]
        assert f"The run directory {first.run_dir} belongs to a daemon that is running; stop it or set" in run_dir
        assert f"The slab {first.slab_path} belongs to a daemon that is running; stop it or set another" in slab
        assert "Waiting up to 5 s for it to end." in slab
        assert f'"{first.socket_path}": another program receives there; stop it or choose another path' in place
        assert not any(other.slab_path.exists() for other in others)
        send(first, 10)
        assert first.wait_settled(10).delivered == 10


# --- the daemon's own life -------------------------------------------------------------------------------------------


def test_a_moved_log_file_is_reopened(tmp_path: Path, broker: DevBroker) -> None:
    """Every process reopens the file, with or without a signal."""
    path, moved = tmp_path / "bruce.log", tmp_path / "bruce.log.1"
    settings = {"logging.file.enable": "true", "logging.file.path": path}
    with Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        daemon.wait_for(lambda: "Process router is ready" in path.read_text(), "the log", 20)
        path.rename(moved)
        os.kill(daemon.pid, signal.SIGUSR1)
        send(daemon, 3, "unknown")
        daemon.send_encoded(b"malformed")
        daemon.wait_for(path.exists, "a new log", 10)
        daemon.wait_for(lambda: "bruce[router " in path.read_text(), "the router in the new log", 10)
        daemon.wait_for(lambda: "bruce[input " in path.read_text(), "the input in the new log", 10)
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for(lambda: "bruce[supervisor " in path.read_text(), "the supervisor in the new log", 10)
        before = moved.read_text()
        send(daemon, 3)
        daemon.wait_settled(7)
        assert moved.read_text() == before


def test_processes_die_with_the_supervisor_and_the_next_run_adopts_the_slab(tmp_path: Path, broker: DevBroker) -> None:
    load = Load(TOPICS, senders=1, messages=2000, largest=3000)
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
        broker.broker_down(1)
        run_senders(load, daemon.socket_path)
        daemon.wait_for(lambda: daemon.books().received == load.total, "the messages", 20)
        children = [psutil.Process(pid) for pid in daemon.pids().values()]
        assert len(children) == 4
        os.kill(daemon.pid, signal.SIGKILL)
        assert daemon._process is not None
        assert daemon._process.wait(10) == -signal.SIGKILL
        assert not processes.still_alive(children, 5)
        assert daemon.socket_path.is_socket()  # the killed daemon could not remove it
        daemon.start()
        assert f"Adopted the slab {daemon.slab_path} with 2,000 messages to deliver" in daemon.log()
        broker.broker_up(1)
        assert daemon.wait_settled(load.total).delivered == load.total
    assert_all_there(load, read_back(broker, TOPICS))
