"""`bruce replay` with the whole daemon: each line of a discard file or of an export once, also through kills."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line
from support.daemon import Daemon
from support.processes import BRUCE, run_bruce, spawn
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

STAMP: Final = 1_700_000_000_000
MESSAGES: Final = 60


def with_discard_file(directory: Path, broker: DevBroker) -> Daemon:
    settings = {"discard_log.enable": "true", "discard_log.path": directory / "discard.log"}
    return daemon_in(directory, broker, **ONE_WORKER, **settings)


def words(directory: Path, *files: Path) -> list[str]:
    target = ("--stream-socket-path", str(directory / "in.stream"), "--state", str(directory / "state"))
    return ["replay", *map(str, files), *target]


def replay(directory: Path, *files: Path) -> str:
    done = run_bruce(*words(directory, *files))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_messages_of_a_discard_file_reach_their_topic_once(tmp_path: Path) -> None:
    log = tmp_path / "discard.log"
    with DevBroker(topics={"there": 1}) as broker, with_discard_file(tmp_path, broker) as daemon:
        with DatagramClient(daemon.socket_path, timeout=30) as client:
            for number in range(MESSAGES):
                headers = [("n", b"%d" % number)]
                client.send("later", b"%d" % number, b"key", number, STAMP + number, headers=headers)
            client.send("later", None, b"tombstone", 0, STAMP)
        total = MESSAGES + 1
        daemon.wait_settled(total)
        daemon.wait_for(lambda: len(log.read_bytes().splitlines()) == total, "the lines", 20)
        broker.add_topic("later", 2)
        changed = daemon.counters()["MetadataChangedOnRefresh"]
        daemon.refresh_metadata()
        daemon.wait_for(lambda: daemon.counters()["MetadataChangedOnRefresh"] > changed, "the topic", 20)
        assert replay(tmp_path, log).startswith(f"{total} sent, 0 replayed before")
        moved = log.rename(tmp_path / "moved")
        assert replay(tmp_path, moved).startswith(f"0 sent, {total} replayed before")
        books = daemon.wait_settled(2 * total)
        assert (books.received, books.delivered, books.discarded) == (2 * total, total, {"BAD_TOPIC": total})
        found = broker.fetch("later")
    for partition, records in enumerate(found):
        numbers = list(range(partition, MESSAGES, 2))
        plain = [record for record in records if record.key == b"key"]
        assert [(record.value, record.timestamp, record.headers) for record in plain] == [
            (b"%d" % n, STAMP + n, (("n", b"%d" % n),)) for n in numbers
        ]
    assert [record.value for records in found for record in records if record.key == b"tombstone"] == [None]


def test_kills_of_the_command_and_of_the_daemon_repeat_and_lose_nothing(tmp_path: Path) -> None:
    count = 6000
    file = tmp_path / "lines"
    lines = (DiscardLine(1, STAMP, LineEvent.DISCARD, "NO_MEM", b"hits", b"", b"%d" % n, n % 2) for n in range(count))
    file.write_bytes(b"".join(map(format_line, lines)))
    with DevBroker(topics={"hits": 2}, ack_delay_ms=100) as broker, with_discard_file(tmp_path, broker) as daemon:
        for goal in (1, count // 2):
            running = spawn([*BRUCE, *words(tmp_path, file)])
            daemon.wait_for(lambda: daemon.books().received >= goal, "messages of the replay", 40)  # noqa: B023
            running.kill()
            running.wait()
        daemon.kill("input-1")
        deadline = time.monotonic() + 60
        while run_bruce(*words(tmp_path, file)).returncode:
            assert time.monotonic() < deadline
        assert replay(tmp_path, file).startswith(f"0 sent, {count:,} replayed before")
        books = daemon.wait_settled(count)
        assert books.delivered == count
        assert set(books.discarded) <= {"ABANDONED_ATTEMPT"}
        found = broker.fetch("hits")
    for partition, records in enumerate(found):
        assert [record.value for record in records] == [b"%d" % n for n in range(partition, count, 2)]


def test_the_messages_of_an_export_reach_another_daemon(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    values = [b"%d" % number for number in range(MESSAGES)]
    with DevBroker(topics={"hits": 1}) as broker:
        with Daemon(first, "127.0.0.1:1") as daemon:
            daemon.send("hits", *values, timestamp_ms=STAMP)
            daemon.wait_received(MESSAGES)
            daemon.kill_all()
        export = tmp_path / "export"
        assert run_bruce("slab", "export", daemon.slab_path, "--output", export).returncode == 0
        with with_discard_file(second, broker) as daemon:
            assert replay(second, export).startswith(f"{MESSAGES} sent")
            assert daemon.wait_settled(MESSAGES).delivered == MESSAGES
            assert [record.value for record in broker.fetch("hits")[0]] == values
