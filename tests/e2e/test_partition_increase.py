"""A topic gets more partitions while messages for it are held: each partition keeps the order of sending."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from support.chaos_sites import PARTITIONS, Embedded, Real
from support.daemon import Daemon
from support.traffic import Load, assert_all_there, messages_of, send_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from support.chaos_sites import Site
    from support.traffic import Message

pytestmark = pytest.mark.process

DELIVERED, HELD, AFTER = 100, 1700, 1000
"""Numbers of messages before the router stops, during the stop, and after it."""
WITHIN_S: Final = 90


@pytest.fixture
def embedded() -> Iterator[Site]:
    with DevBroker(brokers=3, strict=True) as broker:
        yield Embedded(broker, 3)


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Site:
    return Real(request.getfixturevalue("kafka_3"))


def kill_router(daemon: Daemon) -> None:
    daemon.kill("router")


def kill_router_and_input(daemon: Daemon) -> None:
    daemon.kill("input")
    daemon.kill("router")


def continue_router(daemon: Daemon) -> None:
    os.kill(daemon.pids()["router"], signal.SIGCONT)
    daemon.refresh_metadata()


RESTARTS: Final = [kill_router, Daemon.upgrade, kill_router_and_input, continue_router]


def send(daemon: Daemon, messages: Iterable[Message]) -> None:
    with DatagramClient(daemon.socket_path, timeout=WITHIN_S) as client:
        for message in messages:
            send_message(client, message)


def knows_growth(daemon: Daemon, topic: str) -> bool:
    lines = daemon.get(f"/overview?topic={topic}")["topics"]["shown"]
    if any(line["partitions"] == PARTITIONS + 4 for line in lines):
        return True
    daemon.refresh_metadata()  # the brokers learn of the partitions one by one
    return False


def grow_while_held(directory: Path, site: Site, restart: Callable[[Daemon], None]) -> None:
    topic = f"grows-{directory.name}"
    load = Load((topic,), senders=1, messages=DELIVERED + HELD + AFTER, largest=200, keyed=80)
    messages = messages_of(load, 0)
    site.create_topics(load.topics)
    with Daemon(directory, site.bootstrap, {"input.unix_datagram.when_full": "block"}) as daemon:
        send(daemon, islice(messages, DELIVERED))
        daemon.wait_settled(DELIVERED)
        os.kill(daemon.pids()["router"], signal.SIGSTOP)
        send(daemon, islice(messages, HELD))
        site.add_partitions(topic, PARTITIONS + 4)
        restart(daemon)
        daemon.wait_for(lambda: knows_growth(daemon, topic), "the input to know the new partitions", WITHIN_S)
        send(daemon, messages)
        books = daemon.wait_settled(load.total)
        assert books.received == books.delivered == load.total
        assert books.possible_duplicates == 0
        assert daemon.terminate() == 0
    records = {topic: site.read_back(topic)}
    assert_all_there(load, records)
    assert {seen.partition for seen in records[topic]} == set(range(PARTITIONS + 4))


@pytest.mark.parametrize("restart", RESTARTS)
def test_held_messages_keep_the_order_when_the_topic_grows(
    tmp_path: Path, embedded: Site, restart: Callable[[Daemon], None]
) -> None:
    grow_while_held(tmp_path, embedded, restart)


@pytest.mark.parametrize(
    "restart",
    [pytest.param(restart, marks=() if restart is kill_router_and_input else pytest.mark.soak) for restart in RESTARTS],
)
@pytest.mark.usefixtures("kafka_3")
def test_held_messages_keep_the_order_when_the_topic_grows_on_real_brokers(
    tmp_path: Path, real: Site, restart: Callable[[Daemon], None]
) -> None:
    grow_while_held(tmp_path, real, restart)
