"""Fenced attempts of the whole daemon, with the embedded broker: all of one is delivered, or nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import FlushError, StreamClient
from bruce_mp.protocol.client.barrier import BarrierStatus, Level
from bruce_mp.protocol.client.fence import EndReason, decode_ended, encode_begin, encode_end
from bruce_mp.protocol.client.inquiry import AttemptOutcome
from bruce_mp.telemetry.clock import wall_ms
from support.read_back import broker_fixture, records_in
from support.stream_inputs import TOPICS, ask, connect, daemon_in, inquire, message, names

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker
    from support.daemon import Daemon

pytestmark = pytest.mark.process

BEGIN: Final = encode_begin("query/1/2/3")
END: Final = encode_end()
broker = broker_fixture(brokers=2, topics=dict.fromkeys(TOPICS, 4))


def read_back(broker: DevBroker) -> list[tuple[int, int]]:
    """Return client and number of all records; each client's messages of a partition are in order."""
    found = []
    for topic in TOPICS:
        for records in broker.fetch(topic):
            some = names([record.value or b"" for record in records])
            for who in {who for who, _ in some}:
                mine = [number for each, number in some if each == who]
                assert mine == sorted(mine)
            found += some
    return sorted(found)


def test_a_killed_clients_attempt_is_discarded_and_a_completed_one_delivered(tmp_path: Path, broker: DevBroker) -> None:
    path = tmp_path / "in.stream"
    script = (
        "import sys, time; from bruce_mp.client import StreamClient\n"
        f"client = StreamClient({str(path)!r})\n"
        "with client.attempt('killed'):\n"
        f"    for number in range(2000): client.send({TOPICS[0]!r}, b'1:%d:' % number)\n"
        "    client.flush(30, 'received'); print('sent', flush=True); time.sleep(600)\n"
    )
    with daemon_in(tmp_path, broker) as daemon:
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"sent\n"
            assert daemon.books_while_stopped().held["input"] == 2000
            victim.kill()
        with StreamClient(path, timeout=60) as client:
            with client.attempt("whole"):
                for number in range(2000):
                    client.send(TOPICS[0], b"2:%d:" % number, partition_key=1)
                with pytest.raises(FlushError, match="attempt"):
                    client.flush(60)
            assert client.flush(60).delivered == 2000
        books = daemon.wait_settled(4000)
        assert books.discarded == {"ABANDONED_ATTEMPT": 2000}
        assert read_back(broker) == [(2, number) for number in range(2000)]


def fail_inside(client: StreamClient) -> None:
    with client.attempt("failed"):
        client.send(TOPICS[0], b"1:1:")
        client.flush(60, "received")
        _ = 1 // 0


def test_an_exception_in_the_attempt_block_discards_its_messages(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon, StreamClient(tmp_path / "in.stream", timeout=60) as client:
        with pytest.raises(ZeroDivisionError):
            fail_inside(client)
        with client.attempt("again"):
            client.send(TOPICS[0], b"1:2:")
        with contextlib.suppress(FlushError):  # reports the broken connection
            client.flush(60)
        assert daemon.wait_settled(2).discarded == {"ABANDONED_ATTEMPT": 1}
    assert read_back(broker) == [(1, 2)]


def test_an_oversized_attempt_is_explained_and_closed(tmp_path: Path, broker: DevBroker) -> None:
    settings = {"input.streams.max_attempt_size": 256 << 10, "input.streams.max_spill_size": 0}
    with daemon_in(tmp_path, broker, **settings) as daemon:
        with connect(daemon) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(BEGIN + b"".join(message(1, number, 4000) for number in range(500)))
            reason, text = decode_ended(client.recv(8192))
            assert reason is EndReason.TOO_LARGE
            assert "max_attempt_size" in text
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        with connect(daemon) as client:
            client.sendall(message(2, 1))
            assert ask(client).delivered == 1
        books = daemon.books_while_stopped()
        assert books.balanced
        assert books.discarded == {"ABANDONED_ATTEMPT": books.received - 1}
        daemon.terminate()
        assert "max_attempt_size" in daemon.log()


def test_a_hundred_interleaved_attempts_are_delivered_or_discarded_whole(tmp_path: Path, broker: DevBroker) -> None:
    """Every third client disconnects before its end frame; a daemon that shuts down discards open attempts."""
    with daemon_in(tmp_path, broker) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(connect(daemon, "tcp" if who % 2 else "unix")) for who in range(150)]
        for part in range(3):
            for who, client in enumerate(clients):
                begin = BEGIN if part == 0 and who < 100 else b""
                client.sendall(begin + b"".join(message(who, part * 10 + number) for number in range(10)))
        stays = [who for who in range(150) if who >= 100 or who % 3]
        for who, client in enumerate(clients[:100]):
            if who % 3:
                client.sendall(END)
            else:
                assert ask(client, 1, Level.RECEIVED).received == 30
                client.close()
        for who in stays:
            assert ask(clients[who], 1).delivered == 30
        assert daemon.wait_settled(4500).discarded == {"ABANDONED_ATTEMPT": 34 * 30}
        clients[1].sendall(BEGIN + message(1, 99))
        assert ask(clients[1], 2, Level.RECEIVED).received == 31
        daemon.terminate()
        assert "ABANDONED_ATTEMPT 1021" in daemon.log()
    assert read_back(broker) == sorted((who, number) for who in stays for number in range(30))


SMALL: Final = {"slab.size": "8m", "input.streams.workers": 1}
LARGE: Final = 10_000
SIZE: Final = 1_800
"""Bytes of a message of an attempt that is larger than the slab: two fit in a chunk."""


ATTEMPTS: Final = 6


def send_large(client: socket.socket, who: int, begin: bytes = BEGIN, count: int = LARGE) -> None:
    """Begin an attempt; by default it is larger than the slab."""
    client.sendall(begin)
    for start in range(0, count, 100):
        client.sendall(b"".join(message(who, number, SIZE) for number in range(start, start + 100)))
    assert ask(client, 1, Level.RECEIVED).received == count


def test_an_attempt_larger_than_the_slab_is_delivered_once_in_order(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker, **SMALL) as daemon:
        with connect(daemon) as client, connect(daemon) as other:
            send_large(client, 1)
            books = daemon.books_while_stopped()
            assert books.balanced
            assert books.held["spill"] > LARGE // 2
            other.sendall(message(2, 0))
            assert ask(other, 1).delivered == 1
            client.sendall(END)
            answer = ask(client, 2)
            assert (answer.status, answer.delivered) == (BarrierStatus.DONE, LARGE)
        assert daemon.wait_settled(LARGE + 1).discarded == {}
        daemon.terminate()
        assert not list(tmp_path.glob("**/*.spill"))
    assert read_back(broker) == [*((1, number) for number in range(LARGE)), (2, 0)]


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize(
    ("victim", "count"),
    [
        ("a worker", 300),
        pytest.param("the daemon", 300, marks=pytest.mark.soak),
        pytest.param("a worker", LARGE, marks=pytest.mark.soak),
        ("the daemon", LARGE),
    ],
)
def test_a_death_before_or_after_the_end_frame_keeps_an_attempt_atomic(
    tmp_path: Path, broker: DevBroker, victim: str, count: int, is_ended: bool
) -> None:
    """Behind its end some of a large one is in the slab, some in Kafka, and some in the spill file."""
    with daemon_in(tmp_path, broker, **SMALL) as daemon:
        with connect(daemon) as client:
            send_large(client, 1, count=count)
            assert ask(client, 2, Level.DELIVERED).status is BarrierStatus.FENCED
            if is_ended:
                client.sendall(END)
                assert ask(client, 3, Level.RECEIVED).received == count
            _kill(daemon, victim, 1)
        books = daemon.wait_settled(count)
        assert books.discarded == ({} if is_ended else {"ABANDONED_ATTEMPT": count})
        daemon.terminate()
        assert not list(tmp_path.glob("**/*.spill"))
    assert read_back(broker) == ([(1, number) for number in range(count)] if is_ended else [])


@pytest.mark.parametrize("keeps_timestamps", [False, True])
def test_timestamps_of_a_spilled_attempt_survive_a_kill_and_a_restart(
    tmp_path: Path, broker: DevBroker, keeps_timestamps: bool
) -> None:
    """Those on which the client insists are as sent; others, decades old, become the time of the arrival."""
    with daemon_in(tmp_path, broker, **SMALL, **{"timestamps.policy": "clamp"}) as daemon:
        with connect(daemon) as client:
            began_ms = wall_ms()
            send_large(client, 1, encode_begin("clock", keeps_timestamps=keeps_timestamps))
            arrived_ms = wall_ms()
            os.kill(daemon.pids()["router"], signal.SIGSTOP)
            client.sendall(END)
            assert ask(client, 2, Level.RECEIVED).received == LARGE
            daemon.kill_all()
        assert daemon.books().held["spill"] > LARGE // 4
        daemon.start()
        assert daemon.wait_settled(LARGE).discarded == {}
    records = records_in(broker, TOPICS[1])
    found = {names([record.value or b""])[0][1]: record.timestamp for record in records}
    assert len(records) == len(found) == LARGE
    if keeps_timestamps:
        assert all(timestamp == number for number, timestamp in found.items())
    else:
        assert began_ms - 50 <= min(found.values())
        assert max(found.values()) <= arrived_ms + 50


def test_a_restart_delivers_complete_attempts_from_spill_files(tmp_path: Path, broker: DevBroker) -> None:
    """Streams are switched off at the restart: a worker comes all the same, for the file."""
    with daemon_in(tmp_path, broker, **SMALL) as daemon:
        with connect(daemon) as client:
            send_large(client, 1)
            os.kill(daemon.pids()["router"], signal.SIGSTOP)
            client.sendall(END)
            assert ask(client, 2, Level.RECEIVED).received == LARGE
            daemon.kill_all()
        assert daemon.books().held["spill"] > 0
        daemon.configure({"input.unix_stream.enable": "false", "input.tcp.enable": "false"})
        daemon.start()
        assert daemon.wait_settled(LARGE).discarded == {}
    assert read_back(broker) == [(1, number) for number in range(LARGE)]


def test_the_client_receives_the_reason_why_its_attempt_ended(tmp_path: Path, broker: DevBroker) -> None:
    with daemon_in(tmp_path, broker) as daemon:
        with connect(daemon) as client:
            client.sendall(BEGIN + message(1, 1) + END[:-1] + b"\1")
            assert decode_ended(client.recv(8192))[0] is EndReason.NOT_UNDERSTOOD
        with connect(daemon) as client:
            client.sendall(BEGIN + message(1, 1))
            assert ask(client, 1, Level.RECEIVED).received == 1
            daemon.terminate()
            reason, text = decode_ended(client.recv(8192))
            assert reason is EndReason.SHUTTING_DOWN
            assert "query/1/2/3" in text


@pytest.mark.parametrize("victim", ["the daemon", "a worker"])
def test_a_unique_attempt_is_delivered_once_over_kills(tmp_path: Path, broker: DevBroker, victim: str) -> None:
    """The kill comes at a random moment around the end frame; the client repeats what the daemon does not know.

    The first attempt has no end frame before the kill, the second one has its outcome.
    """
    chosen, repeated = random.Random(1), 0
    with daemon_in(tmp_path, broker, **{"input.streams.spill_dir": tmp_path}) as daemon:
        for number in range(ATTEMPTS):
            name = f"job/{number}"
            frames = encode_begin(name, is_unique=True) + b"".join(message(number, n) for n in range(200))
            with connect(daemon) as connection:
                connection.sendall(frames)
                if number == 1:
                    connection.sendall(END)
                    assert ask(connection).delivered == 200
                ending = threading.Timer(chosen.random() * 0.04, _send_end, [connection])
                if number > 1:
                    ending.start()  # the end frame meets the kill at any of its moments
                _kill(daemon, victim, chosen.randint(1, 2))
                if number > 1:
                    ending.join()
            while inquire(daemon, name.encode()).outcome is AttemptOutcome.NONE:
                repeated += 1
                with connect(daemon) as connection:
                    connection.sendall(frames + END)
                    with contextlib.suppress(ConnectionError):  # the first end frame may be read only now
                        assert ask(connection).delivered == 200
        books = daemon.wait_settled(0)
    assert read_back(broker) == [(number, n) for number in range(ATTEMPTS) for n in range(200)]
    assert books.delivered == ATTEMPTS * 200
    assert books.discarded.keys() <= {"ABANDONED_ATTEMPT"}
    assert 0 < repeated < ATTEMPTS


def _send_end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(END)


def _kill(daemon: Daemon, victim: str, chosen: int) -> None:
    if victim == "the daemon":
        daemon.kill_all()
        daemon.start()
    else:
        daemon.kill(f"input-{chosen}")
