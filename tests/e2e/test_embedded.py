"""The whole daemon against the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import Daemon
from support.read_back import broker_fixture, read_back
from support.traffic import Load, assert_all_there, start_senders

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS = tuple(f"topic-{number}" for number in range(6))
VICTIMS = ("input", "router", "dispatcher-0", "status")
KILLS = 2
BLOCKING = {"input.unix_datagram.when_full": "block"}
"""The loads do not fit in the slab at once, and a busy machine may take seconds to start the dispatchers."""
broker = broker_fixture(brokers=3, topics=dict.fromkeys(TOPICS, 4))


def finish(load: Load, daemon: Daemon, broker: DevBroker, senders: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the senders and for the daemon, then compare."""
    for sender in senders:
        assert sender.wait(120) == 0
    books = daemon.wait_settled(load.total)
    assert books.received == books.delivered == load.total
    assert_all_there(load, read_back(broker, TOPICS))


def test_every_message_arrives_once_and_in_order(tmp_path: Path, broker: DevBroker) -> None:
    load = Load(TOPICS, senders=3, messages=2000, largest=50_000)
    with Daemon(tmp_path, broker.bootstrap, BLOCKING) as daemon:
        finish(load, daemon, broker, start_senders(load, daemon.socket_path))
        assert daemon.terminate() == 0
    assert not daemon.slab_path.exists()


def test_a_killed_process_restarts_without_loss(tmp_path: Path, broker: DevBroker) -> None:
    load = Load(TOPICS, senders=2, messages=10_000, largest=500)
    with Daemon(tmp_path, broker.bootstrap, BLOCKING) as daemon:
        senders = start_senders(load, daemon.socket_path)
        for number, victim in enumerate(VICTIMS * KILLS, start=1):
            daemon.wait_received(load.total * number // (len(VICTIMS) * KILLS + 2))
            daemon.kill(victim)
        finish(load, daemon, broker, senders)
