"""The books are consistent at any moment, with many messages held and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from support.daemon import Daemon
from support.read_back import broker_fixture, read_back
from support.traffic import Load, assert_all_there, start_senders

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green", "blue")
LOAD: Final = Load(TOPICS, senders=2, messages=8000, smallest=10, largest=300)
READINGS: Final = 100
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 3))


@pytest.mark.parametrize("outage", [True, False], ids=["held", "flowing"])
def test_each_reading_of_the_books_under_traffic_is_consistent(
    tmp_path: Path, broker: DevBroker, *, outage: bool
) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
        if outage:
            broker.broker_down(1)
        senders = start_senders(LOAD, daemon.socket_path)
        daemon.wait_received(LOAD.total // 10)
        for _ in range(READINGS):
            books = daemon.get("/books/json")
            assert books["consistent"]
            assert books["received"] == books["delivered"] + sum(books["held"].values())
        assert [sender.wait(60) for sender in senders] == [0] * LOAD.senders
        broker.broker_up(1)
        assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
        assert_all_there(LOAD, read_back(broker, TOPICS))
