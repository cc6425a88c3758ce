"""Stream connections to the whole daemon, with the embedded broker."""

from __future__ import annotations

import itertools
import os
import random
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab import layout as lay
from support.read_back import broker_fixture, values_in
from support.stream_inputs import ONE_WORKER, TOPICS, connect, connections_of, daemon_in, message, names

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker
    from support.daemon import Daemon

pytestmark = pytest.mark.process

CONNECTIONS: Final = 2000
BURST: Final = 50
PAUSE_S: Final = 0.05
FUZZ_S: Final = 1.5
broker = broker_fixture(brokers=2, topics=dict.fromkeys(TOPICS, 4))


def arrived(broker: DevBroker) -> list[bytes]:
    """Return all values, those of each partition in order."""
    return [value for topic in TOPICS for value in values_in(broker, topic)]


def test_two_thousand_concurrent_connections_are_served(tmp_path: Path, broker: DevBroker) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with daemon_in(tmp_path, broker) as daemon, ExitStack() as stack:
        clients = [
            stack.enter_context(connect(daemon, "tcp" if who % 4 == 0 else "unix")) for who in range(CONNECTIONS)
        ]
        for number in range(3):
            for who, client in enumerate(clients):
                client.sendall(message(who, number))
        daemon.wait_for(lambda: sum(connections_of(daemon)) == CONNECTIONS, "all connections", 60)
        assert all(connections_of(daemon))
        books = daemon.wait_settled(3 * CONNECTIONS)
        assert books.received == books.delivered == 3 * CONNECTIONS
        found = names(arrived(broker))
        assert sorted(found) == [(who, number) for who in range(CONNECTIONS) for number in range(3)]
        stack.close()
        daemon.wait_for(lambda: not sum(connections_of(daemon)), "the connections to end", 30)


def test_clients_that_stall_within_a_message_delay_no_other(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon, ExitStack() as stack:
        large = encode(TOPICS[0], b"1:0:" + bytes(900_000), timestamp_ms=0)
        stalled = [stack.enter_context(connect(daemon)) for _ in range(100)]
        for number, client in enumerate(stalled):
            client.sendall(large[: 1 + 300 * number])
        half = stack.enter_context(connect(daemon, "tcp"))
        half.sendall(large[:500_000])
        with connect(daemon) as quick:
            for number in range(5000):
                quick.sendall(message(2, number))
        assert daemon.wait_settled(5000).received == 5000
        half.sendall(large[500_000:])
        assert daemon.wait_settled(5001).delivered == 5001
        stack.close()
        books = daemon.wait_settled(5101)
        assert books.discarded == {"UNCLEAN_DISCONNECT": 100}
        assert sorted(names(arrived(broker))) == [(1, 0), *((2, number) for number in range(5000))]


class Sender(threading.Thread):
    """A sender of numbered messages, which opens a new connection when one ends."""

    def __init__(self, daemon: Daemon, who: int, kind: str) -> None:
        super().__init__()
        self._daemon = daemon
        self._who = who
        self._kind = kind
        self.sent = 0
        self.breaks = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            with suppress(OSError), connect(self._daemon, self._kind) as connection:
                while not self.stop.wait(PAUSE_S):
                    for _ in range(BURST):
                        self.sent += 1
                        connection.sendall(message(self._who, self.sent, 300))
                return
            self.breaks += 1
            time.sleep(0.01)


def test_messages_appended_by_a_killed_worker_are_delivered(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon:
        senders = [Sender(daemon, who, "unix" if who % 2 else "tcp") for who in range(8)]
        for sender in senders:
            sender.start()
        try:
            for victim in ("input-1", "input-2", "input-1"):
                daemon.wait_received(daemon.books().received + 3000)
                daemon.kill(victim)
        finally:
            for sender in senders:
                sender.stop.set()
            for sender in senders:
                sender.join(30)
        daemon.wait_for(lambda: not sum(connections_of(daemon)), "everything to be read", 60)
        books = daemon.wait_settled(1)
        found = names(arrived(broker))
        assert sum(sender.breaks for sender in senders) >= 3
        assert len(found) == len(set(found)) == books.delivered
        assert books.received == books.delivered + sum(books.discarded.values())
        assert set(books.discarded) <= {"UNCLEAN_DISCONNECT"}
        assert len(found) <= sum(sender.sent for sender in senders)
        for sender in senders:  # messages of a connection are in order, so gaps are only at breaks
            mine = sorted(number for who, number in found if who == sender._who)
            gaps = sum(1 for before, after in itertools.pairwise(mine) if after != before + 1)
            assert gaps <= sender.breaks


def test_fewer_workers_deliver_messages_held_by_more_workers(tmp_path: Path, broker: DevBroker) -> None:
    alone = {"kafka.bootstrap_servers": '["127.0.0.1:1"]', "input.streams.workers": 4}
    with daemon_in(tmp_path, broker, **alone) as first:
        for who in range(40):
            with connect(first, "tcp" if who % 2 else "unix") as client:
                client.sendall(b"".join(message(who, number) for number in range(20)))
        first.wait_received(800)
        first.kill_all()
    with daemon_in(tmp_path, broker, **ONE_WORKER) as second:
        books = second.wait_settled(800)
        assert books.received == books.delivered == 800
        assert sorted(names(arrived(broker))) == [(who, number) for who in range(40) for number in range(20)]


def damaged(rng: random.Random) -> bytes:
    data = bytearray(message(1, 0, rng.randrange(200)))
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(100))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(data[: rng.randrange(len(data) + 1)]) if rng.random() < 0.3 else bytes(data)


def test_random_bytes_on_all_inputs_affect_no_valid_message(tmp_path: Path, broker: DevBroker) -> None:
    rng = random.Random(5)
    with daemon_in(tmp_path, broker) as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(30)
        datagrams.connect(str(daemon.socket_path))
        good = {kind: connect(daemon, kind) for kind in ("unix", "tcp")}
        until = time.monotonic() + FUZZ_S
        sent = 0
        while time.monotonic() < until:
            for who, kind in enumerate(("unix", "tcp")):
                good[kind].sendall(message(10 + who, sent))
                with connect(daemon, kind) as bad, suppress(OSError):
                    for _ in range(rng.randrange(1, 20)):
                        bad.sendall(damaged(rng))
            datagrams.send(message(12, sent))
            datagrams.send(damaged(rng))
            sent += 1
        for client in good.values():
            client.close()
        daemon.wait_for(lambda: not sum(connections_of(daemon)), "everything to be read", 60)
        daemon.wait_settled(3 * sent)
        found = names(good_ones(arrived(broker)))
        assert sorted(found) == [(who, number) for who in (10, 11, 12) for number in range(sent)]
        assert all(daemon.restarts(row) == 1 for row in range(lay.ROW_FIRST_INPUT, lay.ROW_FIRST_INPUT + 3))


def good_ones(values: list[bytes]) -> list[bytes]:
    """Return the values without damaged messages that are still valid, which name sender 1 or none."""
    return [value for value in values if value.split(b":")[0] in {b"10", b"11", b"12"} and value.endswith(b":")]


def test_the_report_names_the_sender_of_bad_messages(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon, connect(daemon) as client, connect(daemon, "tcp") as other:
        client.sendall(bytes.fromhex("00000004") * 3 + bytes.fromhex("ffffffff"))
        other.sendall(bytes.fromhex("00000004"))
        books = daemon.wait_settled(5)
        assert books.discarded == {"MALFORMED": 5}

        def culprits() -> list[dict[str, object]]:
            found: list[dict[str, object]] = daemon.get("/discards/json")["unfinished_report"]["culprits"]
            return found

        daemon.wait_for(lambda: bool(culprits()), "the report", 20)
        (culprit,) = culprits()
        assert (culprit["pid"], culprit["uid"], culprit["reason"]) == (os.getpid(), os.getuid(), "MALFORMED")
        assert culprit["command"]
        assert (culprit["count"], culprit["msg"]) == (4, "/////w==")
        processes = daemon.get("/processes/json")["processes"]
        assert sum(line.get("connections") or 0 for line in processes) == 1
