"""Requested refreshes of the metadata, and their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support.daemon import Daemon
from support.read_back import read_back
from support.traffic import Load, assert_all_there, start_senders

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def dispatcher_pids(daemon: Daemon) -> set[int]:
    """Return the ids of the dispatchers, whose names change when they are ready."""
    return {pid for name, pid in daemon.pids().items() if name.startswith("dispatcher")}


def test_an_unchanged_refresh_changes_nothing(tmp_path: Path) -> None:
    with (
        DevBroker(brokers=2, topics={"clicks": 4}) as broker,
        Daemon(tmp_path, broker.bootstrap) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as client,
    ):
        client.send("clicks", b"before")
        daemon.wait_settled(1)
        dispatchers = dispatcher_pids(daemon)
        times, before = daemon.get("/metadata_fetch_time/json"), daemon.counters()
        daemon.refresh_metadata()
        unchanged = before["MetadataUnchangedOnRefresh"]
        daemon.wait_for(lambda: daemon.counters()["MetadataUnchangedOnRefresh"] > unchanged, "the refresh", 20)
        after = daemon.get("/metadata_fetch_time/json")
        assert after["last_updated"] > times["last_updated"]
        assert after["last_modified"] == times["last_modified"]
        client.send("clicks", b"after")
        daemon.wait_settled(2)
        assert daemon.counters()["PauseStarted"] == before["PauseStarted"]
        assert dispatcher_pids(daemon) == dispatchers


def test_a_refresh_shows_a_topic_that_is_new_and_leaders_that_moved(tmp_path: Path) -> None:
    with (
        DevBroker(brokers=2, topics={"clicks": 2}) as broker,
        Daemon(tmp_path, broker.bootstrap) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as client,
    ):
        client.send("clicks", b"before", partition_key=0)
        daemon.wait_settled(1)
        before = daemon.counters()
        broker.move_leader("clicks", 0, 2)
        broker.move_leader("clicks", 1, 1)
        broker.add_topic("news", 1)
        daemon.refresh_metadata()
        changed = before["MetadataChangedOnRefresh"]
        daemon.wait_for(lambda: daemon.counters()["MetadataChangedOnRefresh"] > changed, "the refresh", 20)
        client.send("clicks", b"after", partition_key=0)
        client.send("news", b"first")
        assert daemon.wait_settled(3).delivered == 3
        assert [record.value for record in broker.fetch("clicks")[0]] == [b"before", b"after"]


def test_each_refresh_reroutes_everything_without_comparison(tmp_path: Path) -> None:
    """Repeated refreshes under load lose, double and reorder no message."""
    settings = {"input.unix_datagram.when_full": "block", "delivery.compare_metadata_on_refresh": "false"}
    load = Load(("clicks",), senders=2, messages=3000, largest=300)
    with DevBroker(brokers=2, topics={"clicks": 4}) as broker, Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        senders = start_senders(load, daemon.socket_path)
        for share in range(1, 4):
            goal = load.total * share // 4
            daemon.wait_for(lambda: daemon.books().delivered >= goal, f"{goal} to be delivered", 60)  # noqa: B023
            pauses = daemon.counters()["PauseStarted"]
            daemon.refresh_metadata()
            daemon.wait_for(lambda: daemon.counters()["PauseStarted"] > pauses, "a pause", 20)  # noqa: B023
        for sender in senders:
            assert sender.wait(60) == 0
        assert daemon.wait_settled(load.total).delivered == load.total
        assert_all_there(load, read_back(broker, load.topics))


@pytest.mark.parametrize(
    ("action", "counter"),
    [(FaultAction.GARBAGE_BODY, "BadMetadataResponse"), (FaultAction.CLOSE, "ConnectFailOnTryGetMetadata")],
)
def test_a_failed_metadata_response_is_counted_and_the_next_broker_asked(
    tmp_path: Path, action: FaultAction, counter: str
) -> None:
    with DevBroker(brokers=2, topics={"clicks": 2}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.wait_for(lambda: daemon.counters()["GetMetadataSuccess"] > 0, "metadata", 20)
        before = daemon.counters()
        broker.inject(Fault(action=action, api=ApiKey.METADATA))
        daemon.refresh_metadata()
        succeeded = before["GetMetadataSuccess"]
        daemon.wait_for(lambda: daemon.counters()["GetMetadataSuccess"] > succeeded, "metadata", 20)
        after = daemon.counters()
        assert (after[counter], after["GetMetadataFail"]) == (before[counter] + 1, before["GetMetadataFail"])


def test_the_spread_of_starts_does_not_delay_the_successor_of_a_dead_router(tmp_path: Path) -> None:
    with (
        DevBroker(topics={"clicks": 1}) as broker,
        Daemon(tmp_path, broker.bootstrap) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as client,
    ):
        client.send("clicks", b"before")
        daemon.wait_settled(1)
        daemon.reload({"delivery.start_spread_s": 3600})
        daemon.kill("router")
        client.send("clicks", b"after")
        books = daemon.wait_settled(2)
        assert (books.received, books.delivered) == (2, 2)
        assert [record.value for record in broker.fetch("clicks")[0]] == [b"before", b"after"]
