"""Barriers of the whole daemon, with the embedded broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import StreamClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import BarrierStatus, Level, encode_barrier
from bruce_mp.protocol.client.messages import encode
from support.read_back import broker_fixture
from support.stream_inputs import ONE_WORKER, TOPICS, ask, connect, daemon_in, message, read_answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemon import Daemon

pytestmark = pytest.mark.process

MANY: Final = 1_000_000
SLOW_BATCHES: Final = {
    "batching.configs.slow.time_ms": 30_000,
    "batching.default.action": "per_topic",
    "batching.default.config": "slow",
}
broker = broker_fixture(brokers=2, topics=dict.fromkeys(TOPICS, 4), scope="module")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, broker: DevBroker) -> Iterator[Daemon]:
    with daemon_in(tmp_path_factory.mktemp("daemon"), broker, **SLOW_BATCHES) as running:
        with connect(running) as first:  # topics get their numbers
            first.sendall(b"".join(message(who, 0) for who in range(4)))
            assert ask(first).delivered == 4
        yield running


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_barrier_flushes_waiting_batches(daemon: Daemon, kind: str) -> None:
    """The batches of this daemon take half a minute to fill."""
    with connect(daemon, kind) as client:
        for turn in range(1, 6):
            client.sendall(b"".join(message(who, turn) for who in range(8)))
            began = time.monotonic()
            answer = ask(client, turn)
            assert time.monotonic() - began < 15
            assert (answer.status, answer.received, answer.delivered, answer.discarded) == (0, 8 * turn, 8 * turn, 0)


def test_barriers_have_levels_time_limits_and_discard_reasons(daemon: Daemon) -> None:
    with connect(daemon) as client:
        assert ask(client, 1).received == 0
        client.sendall(message(1, 1) + bytes.fromhex("00000004") + encode("nobody", b"?", timestamp_ms=0))
        received = ask(client, 2, Level.RECEIVED)
        assert (received.status, received.received, received.reasons) == (0, 3, {DiscardReason.MALFORMED: 1})
        answer = ask(client, 3)
        assert (answer.status, answer.received, answer.delivered) == (BarrierStatus.DONE, 3, 1)
        assert answer.reasons == {DiscardReason.MALFORMED: 1, DiscardReason.BAD_TOPIC: 1}


def test_a_connection_without_a_barrier_receives_no_byte(daemon: Daemon) -> None:
    with connect(daemon) as quiet, connect(daemon) as other:
        quiet.sendall(message(1, 1) + bytes.fromhex("00000004"))
        other.sendall(message(2, 1))
        ask(other)
        ask(other, 2)
        quiet.settimeout(0.2)
        with pytest.raises(TimeoutError):
            quiet.recv(1)


def test_a_half_closed_connection_still_receives_its_answer(daemon: Daemon) -> None:
    with connect(daemon) as client:
        client.sendall(message(1, 1) * 50 + encode_barrier(b"01234567", Level.DELIVERED, 60_000))
        client.shutdown(socket.SHUT_WR)
        assert read_answer(client).delivered == 50
        assert client.recv(1) == b""


def test_each_of_many_connections_gets_its_own_counts(daemon: Daemon) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(daemon, "tcp" if who % 2 else "unix")) for who in range(200)]
        for turn in range(1, 4):
            for who, client in enumerate(clients):
                data = b"".join(message(who, number) for number in range(who % 7))
                client.sendall(data + encode_barrier(turn.to_bytes(8, "big"), Level.DELIVERED, 60_000))
        for who, client in enumerate(clients):
            answers = [read_answer(client) for _ in range(3)]
            counts = [(int.from_bytes(a.token, "big"), a.status, a.received, a.delivered) for a in answers]
            assert sorted(counts) == [(turn, 0, turn * (who % 7), turn * (who % 7)) for turn in (1, 2, 3)]


def test_the_python_client_flushes_to_delivery(daemon: Daemon) -> None:
    with StreamClient(str(daemon.directory / "in.stream"), timeout=60) as client:
        for number in range(100):
            client.send(TOPICS[0], b"%d" % number)
        outcome = client.flush(60)
        assert outcome.delivered == 100


@pytest.mark.soak
def test_barriers_account_for_a_million_messages(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon, connect(daemon) as client:
        block = b"".join(encode(TOPICS[n % 4], b"%d" % n, timestamp_ms=n) for n in range(10_000))
        for turn in range(1, MANY // 10_000 + 1):
            client.sendall(block)
            if turn % 25 == 0:
                answer = ask(client, turn, limit_ms=300_000)
                assert (answer.status, answer.received) == (BarrierStatus.DONE, turn * 10_000)
                assert answer.delivered == turn * 10_000
        assert daemon.books().delivered == MANY


@pytest.mark.parametrize(
    "victims", [("router",), ("dispatcher-0", "dispatcher-1"), ("router", "dispatcher-0", "status")]
)
def test_barriers_outlive_router_and_dispatchers(tmp_path: Path, broker: DevBroker, victims: tuple[str, ...]) -> None:
    with daemon_in(tmp_path, broker) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(connect(daemon)) for _ in range(4)]
        for who, client in enumerate(clients):
            client.sendall(b"".join(message(who, number) for number in range(5000)))
            client.sendall(encode_barrier(b"01234567", Level.DELIVERED, 120_000))
        for victim in victims:
            daemon.kill(victim)
        for client in clients:
            client.settimeout(120)
            answer = read_answer(client)
            assert (answer.status, answer.received, answer.delivered) == (BarrierStatus.DONE, 5000, 5000)


def test_a_barrier_during_an_outage_is_answered_at_timeout_and_at_shutdown(tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={}) as gone:
        unreachable = gone.bootstrap
    with DevBroker(brokers=1, topics={}) as other:
        daemon = daemon_in(tmp_path, other, **{"kafka.bootstrap_servers": json.dumps([unreachable])})
        with daemon, connect(daemon) as client, connect(daemon, "tcp") as late:
            client.sendall(message(1, 0) * 10)
            answer = ask(client, 1, limit_ms=300)
            assert (answer.status, answer.received, answer.outstanding) == (BarrierStatus.TIMED_OUT, 10, 10)
            late.sendall(message(1, 0) + encode_barrier(b"01234567", Level.DELIVERED, 600_000))
            daemon.wait_received(11)
            os.kill(daemon.pid, signal.SIGTERM)
            assert read_answer(late).status is BarrierStatus.SHUTTING_DOWN
            os.kill(daemon.pid, signal.SIGTERM)
            assert daemon.terminate() == 0


def test_the_connections_of_a_killed_worker_end_without_an_answer(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **ONE_WORKER, **SLOW_BATCHES) as daemon:
        with connect(daemon) as client:
            killer = threading.Thread(target=daemon.kill, args=("input-1",))
            client.sendall(message(1, 1))
            assert ask(client).delivered == 1
            killer.start()
            assert not _answered_to_the_end(client)
            killer.join()
        with connect(daemon) as client:
            client.sendall(message(1, 2))
            assert ask(client).delivered == 1
        books = daemon.wait_settled(1)
        assert books.received == books.delivered


def _answered_to_the_end(client: socket.socket) -> bool:
    """Send messages and barriers until the connection ends in the middle."""
    try:
        for _ in range(100_000):
            client.sendall(message(1, 1))
            ask(client)
    except ConnectionError:
        return False
    return True
