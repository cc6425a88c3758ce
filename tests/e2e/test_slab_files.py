"""The slab outlives the daemon: in shared memory or on a disk, adopted or moved aside, also by an upgrade."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.cli.commands import main
from bruce_mp.protocol.client.discard_line import parse_line
from bruce_mp.slab import layout as lay
from support.daemon import Daemon
from support.installation import Installation
from support.read_back import broker_fixture, read_back
from support.traffic import Load, assert_all_there, messages_of, send_all

if TYPE_CHECKING:
    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

TOPICS: Final = ("red", "green")
LOAD: Final = Load(TOPICS, senders=1, messages=300, largest=20_000)
SHARED_MEMORY: Final = Path("/dev/shm")
VERSION_AT: Final = len(lay.SUPER_MAGIC)
CHUNKS_AT: Final = 24
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 3))


def hold_a_load(daemon: Daemon, broker: DevBroker) -> None:
    """Let the daemon receive a load that it cannot deliver."""
    daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
    broker.broker_down(1)
    send_all(LOAD, 0, daemon.socket_path)
    daemon.wait_for(lambda: daemon.books().received == LOAD.total, "the messages", 20)


def assert_adopted_and_delivered(daemon: Daemon, broker: DevBroker) -> None:
    assert f"Adopted the slab {daemon.slab_path} with {LOAD.total} messages to deliver" in daemon.log()
    broker.broker_up(1)
    assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
    assert_all_there(LOAD, read_back(broker, TOPICS))


def test_a_slab_in_shared_memory_is_adopted_and_delivered(tmp_path: Path, broker: DevBroker) -> None:
    directory = SHARED_MEMORY / f"bruce-test-{os.getpid()}"
    directory.mkdir()
    try:
        with Daemon(tmp_path, broker.bootstrap, {"slab.path": directory / "slab"}) as daemon:
            hold_a_load(daemon, broker)
            daemon.kill_all()
            daemon.start()
            assert_adopted_and_delivered(daemon, broker)
            assert daemon.terminate() == 0
        assert [path.name for path in directory.iterdir()] == ["slab.history"]
    finally:
        shutil.rmtree(directory)


def test_a_slab_of_another_layout_is_moved_aside_unchanged(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        hold_a_load(daemon, broker)
        daemon.kill_all()
        put(daemon.slab_path, VERSION_AT, struct.pack("<I", lay.LAYOUT_VERSION + 1))
        before = daemon.slab_path.read_bytes()
        aside = start_beside(daemon, broker)
        assert aside.name.startswith(f"slab.version-{lay.LAYOUT_VERSION + 1}-")
        assert aside.read_bytes() == before


def test_messages_of_a_damaged_slab_are_exported(tmp_path: Path, broker: DevBroker) -> None:
    with Daemon(tmp_path, broker.bootstrap) as daemon:
        hold_a_load(daemon, broker)
        daemon.kill_all()
        put(daemon.slab_path, CHUNKS_AT, struct.pack("<I", 1))
        aside = start_beside(daemon, broker)
        assert aside.name.startswith("slab.damaged-")
    out = tmp_path / "out"
    main(["slab", "export", str(aside), "--output", str(out)])
    lines = [parse_line(line) for line in out.read_bytes().splitlines(keepends=True)]
    assert [line.value for line in lines] == [message.value for message in messages_of(LOAD, 0)]


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def start_beside(daemon: Daemon, broker: DevBroker) -> Path:
    """Start with an unusable slab, which is moved aside with an error while a new one works; return its new path."""
    daemon.start()
    (aside,) = daemon.directory.glob("slab.*-*")
    (line,) = [line for line in daemon.log().splitlines() if f"It was moved to {aside}" in line]
    assert " ERR: " in line
    broker.broker_up(1)
    send_all(LOAD, 0, daemon.socket_path)
    assert daemon.wait_settled(LOAD.total).delivered == LOAD.total
    assert_all_there(LOAD, read_back(broker, TOPICS))
    return aside


def test_another_release_with_the_same_layout_adopts_the_slab(tmp_path: Path, broker: DevBroker) -> None:
    """The restarted package is a copy with another version number."""
    with Daemon(tmp_path, broker.bootstrap, {"delivery.shutdown_max_delay_ms": 100}) as daemon:
        hold_a_load(daemon, broker)
        assert daemon.terminate() == 0
        installed = Installation(tmp_path / "upgrade")
        installed.set_version("999.0.0")
        daemon.start(installed.path)
        assert "bruce 999.0.0 starts" in daemon.log()
        assert_adopted_and_delivered(daemon, broker)
