"""Shutdown: accepted messages are delivered, or kept and reported, and none is sent twice."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.supervisor.shutdown import INPUT_TIMEOUT_S
from support.daemon import Daemon
from support.daemon_runs import Sender, run_until_exit
from support.read_back import broker_fixture, read_back, values_in
from support.traffic import Load, assert_all_there

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green", "blue", "white")
SMALL_SLAB: Final = {"slab.size": "8m"}
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 3))


@pytest.fixture
def slow_broker() -> Iterator[DevBroker]:
    with DevBroker(topics=dict.fromkeys(TOPICS, 3), ack_delay_ms=300) as running:
        yield running


def lose_broker(daemon: Daemon, broker: DevBroker) -> None:
    """Take the broker down after the daemon has found it."""
    daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
    broker.broker_down(1)


def start_senders(daemon: Daemon, messages: int = 100_000, largest: int = 2000) -> list[Sender]:
    """Start two senders with two topics each."""
    senders = [
        Sender(Load(topics, senders=1, messages=messages, largest=largest, seed=seed), daemon.socket_path)
        for seed, topics in enumerate((TOPICS[:2], TOPICS[2:]))
    ]
    for sender in senders:
        sender.start()
    return senders


def assert_accepted_arrived(senders: list[Sender], broker: DevBroker) -> None:
    """Check that every message accepted by the kernel is in the broker, once and in order."""
    for sender in senders:
        load = replace(sender.load, messages=sender.accepted)
        assert_all_there(load, read_back(broker, load.topics))


def test_shutdown_under_load_delivers_every_accepted_message(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        senders = start_senders(daemon)
        daemon.wait_for(lambda: daemon.books().received > 3000, "traffic", 30)
        assert daemon.terminate() == 0
        for sender in senders:
            sender.join()
            assert sender.refusal is not None
    assert not daemon.slab_path.exists()
    assert not daemon.socket_path.exists()
    assert_accepted_arrived(senders, broker)


def test_the_next_run_delivers_the_rest_after_a_short_shutdown(tmp_path: Path, slow_broker: DevBroker) -> None:
    """The acks are slow: some batches are in flight at the end, and must not be doubled."""
    with Daemon(tmp_path, slow_broker.bootstrap, {"delivery.shutdown_max_delay_ms": 100}) as daemon:
        senders = start_senders(daemon)
        daemon.wait_for(lambda: daemon.books().delivered > 0, "traffic", 30)
        assert daemon.terminate() == 0
        for sender in senders:
            sender.join()
        assert daemon.slab_path.exists()
        books = daemon.books()
        assert books.balanced
        assert books.received == sum(sender.accepted for sender in senders)
        assert sum(books.held.values()) > 0
        assert "could not be delivered" in daemon.log()
        daemon.start()
        daemon.wait_settled(books.received)
        assert daemon.books().delivered == books.received
    assert_accepted_arrived(senders, slow_broker)


def test_shutdown_ends_in_time_and_keeps_messages_when_the_broker_is_down(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap, {"delivery.shutdown_max_delay_ms": 1500}) as daemon:
        lose_broker(daemon, broker)
        for number in range(30):
            daemon.send("red" if number % 3 else "green", b"%d" % number, partition_key=number)
        daemon.wait_for(lambda: daemon.books().received == 30, "30 messages", 10)
        started = time.monotonic()
        assert daemon.terminate() == 0
        assert 1.5 <= time.monotonic() - started < 10
        assert "30 messages could not be delivered." in daemon.log()
        report = daemon.log().partition("By topic:")[2]
        assert "  green: 10" in report
        assert "  red: 20" in report
        assert daemon.slab_path.exists()
        assert not daemon.socket_path.exists()
        broker.broker_up(1)
        daemon.start()
        daemon.wait_settled(30)
        assert daemon.terminate() == 0
    assert not daemon.slab_path.exists()
    assert (len(values_in(broker, "red")), len(values_in(broker, "green"))) == (20, 10)


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def suspend_before_ready(daemon: Daemon, name: str) -> psutil.Process:
    """Kill a process, and suspend its successor before it is ready; try again if that comes too late."""
    for _ in range(10):
        daemon.wait_for(lambda: name in daemon.pids(), name, 20)
        known, ready = children(daemon.pid), daemon.log().count(f"{name} is ready")
        os.kill(daemon.pids()[name], signal.SIGKILL)
        while not (new := children(daemon.pid) - known):
            pass  # a fork is ready within some 15 ms, so no sleep
        successor = psutil.Process(int(new.pop()))
        successor.suspend()
        time.sleep(1)  # the log tells it if it was ready
        if daemon.log().count(f"{name} is ready") == ready:
            return successor
        successor.resume()
    pytest.fail(f"{name} was ready each time before it was suspended")


def test_shutdown_waits_for_an_input_that_starts_slowly(tmp_path: Path, broker: DevBroker) -> None:
    """The time limit for a hung input begins when the input can receive."""
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        starting = suspend_before_ready(daemon, "input")
        daemon.send("red", b"waits in the kernel")
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.wait_for(lambda: "Shutting down" in daemon.log(), "the shutdown to begin", 20)
        time.sleep(INPUT_TIMEOUT_S + 0.5)
        starting.resume()
        assert psutil.Process(daemon.pid).wait(40) in {0, None}
        assert "received 1 = delivered 1 + discarded 0 + held 0" in daemon.log()
    assert not daemon.slab_path.exists()
    assert values_in(broker, "red") == [b"waits in the kernel"]


# --- involuntary ends ------------------------------------------------------------------------------------------------


def test_a_config_error_ends_the_daemon_immediately(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "127.0.0.1:1")
    ended = run_until_exit(daemon.config_path, {"slab.size": "8q"})
    assert ended.code == 1
    for word in ("--set", "slab.size", "8q"):
        assert word in ended.text
    assert "Traceback" not in ended.text
    assert not daemon.slab_path.exists()


# --- a slab that is full ---------------------------------------------------------------------------------------------


def wait_until_blocked(daemon: Daemon, sender: Sender) -> None:
    """Wait until the sender has sent nothing for a second although it tries."""
    at = -1
    for _ in range(30):
        if sender.accepted == at:
            break
        at = sender.accepted
        time.sleep(1)
    assert sender.accepted == at
    assert not sender.is_done
    assert daemon.books().discarded == {}


def block_settings(max_delay_ms: int = 30_000) -> dict[str, object]:
    return {
        **SMALL_SLAB,
        "input.unix_datagram.when_full": "block",
        "topic_share.alpha": 0,  # with thresholds, a socket whose topics are all stuck discards some each second
        "delivery.shutdown_max_delay_ms": max_delay_ms,
    }


def test_shutdown_accounts_for_messages_of_blocked_senders(tmp_path: Path, broker: DevBroker) -> None:
    """Messages in the kernel's queue without room in the slab are counted as discarded and logged."""
    load = Load(TOPICS, senders=1, messages=8000, smallest=100, largest=40_000)
    with Daemon(tmp_path, broker.bootstrap, block_settings(1000)) as daemon:
        lose_broker(daemon, broker)
        sender = Sender(load, daemon.socket_path)
        sender.start()
        wait_until_blocked(daemon, sender)
        assert daemon.terminate() == 0
        sender.join()
        assert sender.refusal is not None
        books = daemon.books()
        assert books.balanced
        assert books.received == sender.accepted
        assert books.discarded.keys() <= {"NO_MEM"}
        assert bool(books.discarded) == ("were discarded: NO_MEM" in daemon.log())
        broker.broker_up(1)
        daemon.start()
        books = daemon.wait_settled(sender.accepted)
    arrived = [record.value for records in read_back(broker, TOPICS).values() for record in records]
    assert len(arrived) == len(set(arrived)) == books.delivered
