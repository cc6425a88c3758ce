"""A topic with a limit in the whole daemon: passing messages, reports, and the death of the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.client.stream import StreamClient, TcpClient
from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.read_back import values_in
from support.stream_inputs import daemon_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

SETTINGS: Final = {
    "input.unix_datagram.when_full": "block",
    "rate_limit.configs.hundred.interval_ms": 24 * 3600 * 1000,
    "rate_limit.configs.hundred.max_count": 100,
    "rate_limit.topics.noisy": "hundred",
}


def reported(daemon: Daemon) -> list[dict[str, object]]:
    found: list[dict[str, object]] = daemon.get("/discards/json")["unfinished_report"]["rate_limit_discard"]
    return found


def send_and_wait(daemon: Daemon, numbers: range) -> None:
    """Send a message of each topic for each number, and wait until the report has the discards."""
    with DatagramClient(daemon.socket_path) as client:
        for number in numbers:
            client.send("noisy", b"%d" % number)
            client.send("quiet", b"%d" % number, partition_key=number)
    books = daemon.wait_settled(2 * numbers.stop)
    expected = [{"topic": "noisy", "count": books.discarded["RATE_LIMIT"]}]
    daemon.wait_for(lambda: reported(daemon) == expected, f"the report to say {expected}", 10)


def test_a_rate_limit_holds_and_a_new_router_grants_one_more_allowance(tmp_path: Path) -> None:
    with DevBroker(topics={"noisy": 2, "quiet": 2}) as broker:
        with Daemon(tmp_path, broker.bootstrap, SETTINGS) as daemon:
            send_and_wait(daemon, range(300))
            daemon.kill("router")
            send_and_wait(daemon, range(300, 600))
            books = daemon.books()
            assert (books.delivered, books.discarded) == (800, {"RATE_LIMIT": 400})
        values = {topic: values_of(broker, topic) for topic in ("noisy", "quiet")}
    assert values == {"noisy": [*range(100), *range(300, 400)], "quiet": [*range(600)]}


def values_of(broker: DevBroker, topic: str) -> list[int]:
    return sorted(map(int, values_in(broker, topic)))


def test_a_rate_limit_covers_all_inputs_together(tmp_path: Path) -> None:
    """A datagram socket and two kinds of streams, each with separate processes, send at the same time."""
    with (
        DevBroker(topics={"noisy": 2}) as broker,
        daemon_in(tmp_path, broker, **SETTINGS) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as datagrams,
        StreamClient(daemon.stream_path, timeout=20) as stream,
        TcpClient(daemon.tcp_port, timeout=20) as tcp,
    ):
        clients = (datagrams, stream, tcp)
        for number in range(300):
            clients[number % 3].send("noisy", b"%d" % number)
        books = daemon.wait_settled(300)
        assert (books.delivered, books.discarded) == (100, {"RATE_LIMIT": 200})
        assert len(set(values_of(broker, "noisy"))) == 100
