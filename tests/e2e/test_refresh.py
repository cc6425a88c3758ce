"""Refreshes of the metadata that somebody asked for, and what they change."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def refresh(daemon: Daemon) -> None:
    address = (daemon.run_dir / HTTP_ADDRESS).read_text().strip()
    url = address if address.startswith("http") else f"http://{address}"
    with urllib.request.urlopen(f"{url.rstrip('/')}/metadata_update", data=b"", timeout=10) as answer:
        assert answer.status == 200


def counters(daemon: Daemon) -> dict[str, int]:
    return {entry["name"]: entry["value"] for entry in daemon.get("/counters/json")["counters"]}


def test_a_refresh_that_brings_nothing_new_changes_nothing(tmp_path: Path) -> None:
    with (
        DevBroker(brokers=2, topics={"clicks": 4}) as broker,
        Daemon(tmp_path, broker.bootstrap) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as client,
    ):
        client.send("clicks", b"before")
        daemon.wait_settled(1)
        dispatchers = {name: pid for name, pid in daemon.pids().items() if name.startswith("dispatcher")}
        times, before = daemon.get("/metadata_fetch_time/json"), counters(daemon)
        refresh(daemon)
        unchanged = before["MetadataUnchangedOnRefresh"]
        daemon.wait_for(lambda: counters(daemon)["MetadataUnchangedOnRefresh"] > unchanged, "the refresh", 20)
        after = daemon.get("/metadata_fetch_time/json")
        assert after["last_updated"] > times["last_updated"]
        assert after["last_modified"] == times["last_modified"]
        client.send("clicks", b"after")
        daemon.wait_settled(2)
        assert counters(daemon)["PauseStarted"] == before["PauseStarted"]
        assert {name: daemon.pids()[name] for name in dispatchers} == dispatchers


def test_a_refresh_shows_a_topic_that_is_new_and_leaders_that_moved(tmp_path: Path) -> None:
    with (
        DevBroker(brokers=2, topics={"clicks": 2}) as broker,
        Daemon(tmp_path, broker.bootstrap) as daemon,
        DatagramClient(daemon.socket_path, timeout=20) as client,
    ):
        client.send("clicks", b"before", partition_key=0)
        daemon.wait_settled(1)
        before = counters(daemon)
        broker.move_leader("clicks", 0, 2)
        broker.move_leader("clicks", 1, 1)
        broker.add_topic("news", 1)
        refresh(daemon)
        changed = before["MetadataChangedOnRefresh"]
        daemon.wait_for(lambda: counters(daemon)["MetadataChangedOnRefresh"] > changed, "the refresh", 20)
        client.send("clicks", b"after", partition_key=0)
        client.send("news", b"first")
        assert daemon.wait_settled(3).delivered == 3
        assert [record.value for record in broker.fetch("clicks")[0]] == [b"before", b"after"]
