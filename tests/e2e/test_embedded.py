"""The whole daemon against the embedded broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.read_back import read_back
from support.traffic import Load, Seen, assert_all_there, start_senders

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TOPICS = tuple(f"topic-{number}" for number in range(6))
BLOCKING = {"input.unix_datagram.when_full": "block"}
"""The loads do not fit in the slab at once, and a busy machine may take seconds to start the dispatchers."""


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(brokers=3, topics=dict.fromkeys(TOPICS, 4)) as running:
        yield running


def finish(load: Load, daemon: Daemon, broker: DevBroker, senders: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the senders and for the daemon, then compare."""
    for sender in senders:
        assert sender.wait(120) == 0
    books = daemon.wait_settled(load.total)
    assert books.received == books.delivered == load.total
    assert_all_there(load, read_back(broker, TOPICS))


def test_every_message_arrives_once_and_in_order(tmp_path: Path, broker: DevBroker) -> None:
    load = Load(TOPICS, senders=3, messages=4000, largest=50_000)
    with Daemon(tmp_path, broker.bootstrap, BLOCKING) as daemon:
        finish(load, daemon, broker, start_senders(load, daemon.socket_path))
        assert daemon.terminate() == 0
    assert not daemon.slab_path.exists()


@pytest.mark.parametrize("victim", ["input", "router", "dispatcher-0", "status"])
def test_a_killed_process_restarts_without_loss(tmp_path: Path, broker: DevBroker, victim: str) -> None:
    load = Load(TOPICS, senders=2, messages=20_000, largest=500)
    with Daemon(tmp_path, broker.bootstrap, BLOCKING) as daemon:
        senders = start_senders(load, daemon.socket_path)
        for share in (1, 2, 3):
            daemon.wait_received(load.total * share // 5)
            daemon.kill(victim)
        finish(load, daemon, broker, senders)


def test_killing_all_processes_neither_loses_nor_duplicates_messages(tmp_path: Path, broker: DevBroker) -> None:
    load = Load(TOPICS, senders=2, messages=10_000, largest=500)
    with Daemon(tmp_path, broker.bootstrap, BLOCKING) as daemon:
        received = 0
        for seed in (1, 2, 3):
            senders = start_senders(replace(load, seed=seed), daemon.socket_path)
            daemon.wait_received(received + 5000)
            daemon.kill_all()
            for sender in senders:
                sender.wait(60)  # fails when the socket disappears; messages sent before count
            daemon.start()
            received = daemon.wait_settled(received).received
        assert daemon.books().delivered == received
    assert_unique_and_in_order(read_back(broker, TOPICS), received)


def assert_unique_and_in_order(records: dict[str, list[Seen]], received: int) -> None:
    """Check that each received message arrived once, and each sender's in order per partition and kind."""
    names = [(seen.timestamp_ms, seen.value) for some in records.values() for seen in some]
    assert len(names) == received
    # Three loads that differ in their seed send messages of equal names; their bytes differ.
    assert len(set(names)) == received
