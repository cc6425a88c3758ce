"""Topics that the brokers refuse fill their share of the slab, and no message of another topic is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client.datagram import DatagramClient
from bruce_mp.client.stream import StreamClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support.read_back import values_in
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.client.base import Client
    from support.daemon import Daemon

pytestmark = pytest.mark.process

HEALTHY: Final = "healthy"
MESSAGES: Final = 1_200
RATE: Final = 800
STUCK_RATE: Final = 4_000
"""Rate of stuck topics in messages per second, once their shares are full."""
STUCK_BYTES: Final = 24 << 20
"""Bytes sent for stuck topics: one and a half times the slab."""
STUCK_VALUE: Final = 6_000
STUCK_BROKER: Final = 2
ERROR_19, ERROR_29, NO_LEADER = 19, 29, -1


@dataclass(frozen=True)
class Sockets:
    """The client that sends messages, and its behaviour without room in the slab."""

    is_stream: bool
    when_full: str

    def daemon(self, directory: Path, broker: DevBroker) -> Daemon:
        section = "streams" if self.is_stream else "unix_datagram"
        settings = {"slab.size": "16m", f"input.{section}.when_full": self.when_full}
        return daemon_in(directory, broker, **ONE_WORKER, **settings)

    def connect(self, daemon: Daemon) -> Client:
        if self.is_stream:
            return StreamClient(daemon.stream_path, timeout=120)
        return DatagramClient(daemon.socket_path, timeout=120)


WAYS: Final = {
    "datagrams": Sockets(is_stream=False, when_full="discard"),
    "datagrams-block": Sockets(is_stream=False, when_full="block"),
    "streams": Sockets(is_stream=True, when_full="discard"),
    "streams-block": Sockets(is_stream=True, when_full="block"),
}
REFUSALS: Final = ((1, ERROR_19), (1, ERROR_29), (1, NO_LEADER), (3, ERROR_29), (30, ERROR_19), (30, NO_LEADER))
"""Numbers of stuck topics, and how the brokers refuse them."""
SHORT: Final = frozenset(
    {
        (1, ERROR_19, "datagrams-block"),
        (3, ERROR_29, "streams-block"),
        (30, NO_LEADER, "streams"),
    }
)
"""The cases of the default run: each refusal, both clients, and both modes; the others are soak tests."""


def refuse(broker: DevBroker, topics: list[str], how: int) -> None:
    """Make the brokers refuse all messages of these topics."""
    if how == NO_LEADER:
        for topic in topics:
            broker.move_leader(topic, 0, STUCK_BROKER)
        broker.broker_down(STUCK_BROKER)
        return
    for topic in topics:
        broker.inject(Fault(action=FaultAction.ERROR, code=how, topic=topic, times=None))


class StuckSender(threading.Thread):
    """A sender for stuck topics: `count` messages at full speed, then one after each pause until stopped."""

    def __init__(self, client: Client, topics: list[str], count: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._client, self._topics, self._count, self._pause_s = client, topics, count, pause_s
        self._stopped = threading.Event()
        self.sent: list[bytes] = []

    def run(self) -> None:
        with self._client as client:
            while not self._stopped.is_set():
                number = len(self.sent)
                topic = self._topics[number % len(self._topics)]
                value = b"%s %08d" % (topic.encode(), number)
                client.send(topic, value.ljust(STUCK_VALUE if number < self._count else 100, b"."))
                self.sent.append(value)
                if number > self._count:
                    time.sleep(self._pause_s)

    def stop(self) -> None:
        self._stopped.set()


def send_healthy(client: Client) -> list[bytes]:
    """Send the messages of the healthy topic at their rate and return their values."""
    values = [b"%06d" % number + bytes(100) for number in range(MESSAGES)]
    began = time.monotonic()
    for number, value in enumerate(values):
        client.send(HEALTHY, value)
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
    return values


def fill(daemon: Daemon, sockets: Sockets, topics: list[str]) -> list[StuckSender]:
    """Start senders for stuck topics, one for each stream, and wait until the topics fill their shares."""
    groups = [[topic] for topic in topics] if sockets.is_stream else [topics]
    count = STUCK_BYTES // STUCK_VALUE // len(groups)
    pause_s = len(groups) / STUCK_RATE
    senders = [StuckSender(sockets.connect(daemon), group, count, pause_s) for group in groups]
    for sender in senders:
        sender.start()
    daemon.wait_for(lambda: is_still(daemon), "the stuck topics to fill their shares", 90)
    return senders


def is_still(daemon: Daemon) -> bool:
    """Return True if the slab is more than half full and no longer fills."""
    before = daemon.get("/held")["slab_in_use"]
    time.sleep(0.5)
    return bool(before > 0.5) and abs(daemon.get("/held")["slab_in_use"] - before) < 0.005


@pytest.mark.parametrize(
    ("stuck", "how", "way"),
    [
        pytest.param(stuck, how, way, marks=() if (stuck, how, way) in SHORT else pytest.mark.soak)
        for (stuck, how), way in product(REFUSALS, WAYS)
    ],
)
def test_stuck_topics_lose_no_message_of_a_healthy_one(tmp_path: Path, stuck: int, how: int, way: str) -> None:
    sockets, topics = WAYS[way], [f"stuck-{number}" for number in range(stuck)]
    with DevBroker(brokers=2, topics=dict.fromkeys([HEALTHY, *topics], 1)) as broker:
        broker.move_leader(HEALTHY, 0, 1)
        refuse(broker, topics, how)
        with sockets.daemon(tmp_path, broker) as daemon:
            with sockets.connect(daemon) as client:
                client.send(HEALTHY, b"first")
                daemon.wait_for(lambda: daemon.books().delivered == 1, "the healthy topic to be known", 30)
                senders = fill(daemon, sockets, topics)
                healthy = [b"first", *send_healthy(client)]
                daemon.wait_for(lambda: daemon.books().delivered >= len(healthy), "the healthy messages", 60)
            assert Tally(values_in(broker, HEALTHY)) == Tally(healthy)
            let_go(broker, daemon, senders)
            books = daemon.wait_settled(len(healthy) + sum(len(sender.sent) for sender in senders), 90)
        check_stuck(broker, topics, senders, sum(books.discarded.values()))
        assert books.discarded.keys() == (set() if way == "streams-block" else {"TOPIC_OVER_SHARE"})


def let_go(broker: DevBroker, daemon: Daemon, senders: list[StuckSender]) -> None:
    """Make the brokers accept all messages, and stop the senders."""
    for sender in senders:
        sender.stop()
    broker.clear_faults()
    broker.broker_up(STUCK_BROKER)
    daemon.refresh_metadata()
    for sender in senders:
        sender.join(90)
        assert not sender.is_alive()


def check_stuck(broker: DevBroker, topics: list[str], senders: list[StuckSender], discarded: int) -> None:
    """Check that the messages of stuck topics arrived once each, except the discarded ones."""
    arrived = Tally(value.rstrip(b".") for topic in topics for value in values_in(broker, topic))
    sent = Tally(value for sender in senders for value in sender.sent)
    assert arrived <= sent
    assert sent.total() - arrived.total() == discarded
