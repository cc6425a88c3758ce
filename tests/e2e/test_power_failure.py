"""A power failure: the journal has the held messages, and a new slab gets them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import FlushError, StreamClient
from bruce_mp.journal.journal_file import read_journal
from support.daemon import Daemon
from support.journals import as_of_an_earlier_boot, journal_of, journaled_messages, lose
from support.read_back import broker_fixture, read_back
from support.stream_inputs import ONE_WORKER, daemon_in
from support.traffic import Load, assert_all_there, messages_of, send_all, send_message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green")
LOAD: Final = Load(TOPICS, senders=1, messages=300, largest=20_000)
EACH_INTERVAL: Final = {"slab.sync": "interval", "slab.sync_interval_ms": 20}
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 3))


def hold_a_load(daemon: Daemon, broker: DevBroker) -> None:
    """Let the journal get a load that the daemon cannot deliver."""
    daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
    broker.broker_down(1)
    send_all(LOAD, 0, daemon.socket_path)
    daemon.wait_for(lambda: journaled(daemon) == LOAD.total, "the journal", 20)


def journaled(daemon: Daemon) -> int:
    return journaled_messages(daemon.slab_path)


def damage(slab: Path, _: Random) -> None:
    """Damage the slab while the machine runs."""
    with slab.open("r+b") as file:
        file.seek(24)
        file.write(bytes(4))


@pytest.mark.parametrize("harm", [lose, damage])
def test_held_messages_survive_the_loss_of_the_slab(
    tmp_path: Path, broker: DevBroker, harm: Callable[[Path, Random], None]
) -> None:
    with Daemon(tmp_path, broker.bootstrap, EACH_INTERVAL) as daemon:
        hold_a_load(daemon, broker)
        daemon.kill_all()
        harm(daemon.slab_path, Random(1))
        daemon.start()
        assert f"Restored {LOAD.total} messages from the journal" in daemon.log()
        broker.broker_up(1)
        assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
        assert_all_there(LOAD, read_back(broker, TOPICS))
        assert daemon.terminate() == 0
    assert not daemon.slab_path.exists()
    assert not journal_of(daemon.slab_path).parent.exists()


def test_a_slab_of_the_present_boot_is_newer_than_the_journal(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap, EACH_INTERVAL) as daemon:
        hold_a_load(daemon, broker)
        daemon.kill_all()
        daemon.start()
        assert f"Adopted the slab {daemon.slab_path} with {LOAD.total} messages" in daemon.log()
        assert "Restored" not in daemon.log()
        broker.broker_up(1)
        assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
        assert_all_there(LOAD, read_back(broker, TOPICS))


def test_delivered_messages_leave_the_journal(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap, EACH_INTERVAL) as daemon:
        hold_a_load(daemon, broker)
        broker.broker_up(1)
        daemon.wait_settled(LOAD.total)
        daemon.wait_for(lambda: journaled(daemon) == 0, "the journal to get empty", 10)
        daemon.kill_all()
        lose(daemon.slab_path, Random(1))
        daemon.start()
        assert "Restored" not in daemon.log()
    assert_all_there(LOAD, read_back(broker, TOPICS))


def test_a_daemon_that_ended_with_messages_left_them_in_slab_and_journal(tmp_path: Path, broker: DevBroker) -> None:
    settings = {**EACH_INTERVAL, "delivery.shutdown_max_delay_ms": 100}
    with Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        hold_a_load(daemon, broker)
        assert daemon.terminate() == 0
        content = read_journal(journal_of(daemon.slab_path))
        assert content is not None
        assert content.is_clean
        assert content.message_count == LOAD.total
        as_of_an_earlier_boot(journal_of(daemon.slab_path))
        daemon.start()
        assert "Restored" not in daemon.log()
        broker.broker_up(1)
        assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
        assert_all_there(LOAD, read_back(broker, TOPICS))


@pytest.mark.parametrize("sync", ["interval", "each flush"])
def test_a_durable_flush_returns_when_the_messages_are_in_the_journal(
    tmp_path: Path, broker: DevBroker, sync: str
) -> None:
    settings = {"slab.sync": sync, "slab.sync_interval_ms": 100 if sync == "interval" else 60_000}
    with daemon_in(tmp_path, broker, **ONE_WORKER, **settings) as daemon:
        daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
        broker.broker_down(1)
        with StreamClient(daemon.stream_path) as client:
            for message in messages_of(LOAD, 0):
                send_message(client, message)
            outcome = client.flush(timeout=20, level="durable")
        assert (outcome.received, outcome.delivered) == (LOAD.total, 0)
        daemon.kill_all()
        lose(daemon.slab_path, Random(1))
        daemon.start()
        broker.broker_up(1)
        assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
        assert_all_there(LOAD, read_back(broker, TOPICS))


def test_a_durable_flush_without_a_journal_fails_with_the_remedy(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **ONE_WORKER) as daemon, StreamClient(daemon.stream_path) as client:
        client.send("red", b"value")
        with pytest.raises(FlushError, match=r"keeps no journal\. Set slab\.sync"):
            client.flush(timeout=20, level="durable")
        daemon.wait_settled(1)


def test_a_journal_process_that_dies_begins_its_journal_again(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap, EACH_INTERVAL) as daemon:
        hold_a_load(daemon, broker)
        daemon.kill("journal")
        daemon.wait_for(lambda: journaled(daemon) == LOAD.total, "the journal", 20)
        broker.broker_up(1)
        daemon.wait_settled(LOAD.total)
        daemon.wait_for(lambda: journaled(daemon) == 0, "the journal to get empty", 10)
    assert_all_there(LOAD, read_back(broker, TOPICS))
