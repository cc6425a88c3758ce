"""The Python clients against the whole daemon."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import Client, DatagramClient, FlushError, Outcome, StreamClient, TcpClient
from bruce_mp.devbroker.control import DevBroker
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

MESSAGES = 3000
FILLER = bytes(200)


def send(client: Client, name: bytes, first: int, count: int) -> None:
    for number in range(first, first + count):
        client.send("clicks", b"%s:%d:" % (name, number) + FILLER, partition_key=0)


def received(broker: DevBroker, name: bytes) -> list[int]:
    """Return the numbers of a sender's messages in the order of their partition."""
    values = [record.value or b"" for record in broker.fetch("clicks")[0]]
    return [int(value.split(b":")[1]) for value in values if value.startswith(name + b":")]


def test_every_client_delivers_all_messages_in_order(tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={"clicks": 2}) as broker, daemon_in(tmp_path, broker, **ONE_WORKER) as daemon:
        clients: dict[bytes, Client] = {
            b"datagram": DatagramClient(daemon.socket_path, timeout=60),
            b"stream": StreamClient(daemon.stream_path, timeout=60),
            b"lingering": StreamClient(daemon.stream_path, timeout=60, linger=0.01),
            b"tcp": TcpClient(daemon.tcp_port, timeout=60, linger=0.01),
        }
        threads = [threading.Thread(target=send, args=(each, name, 0, MESSAGES)) for name, each in clients.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for client in clients.values():
            client.close()
            assert (client.stats().sent, dict(client.stats().dropped)) == (MESSAGES, {})
        daemon.wait_settled(len(clients) * MESSAGES)
        for name in clients:
            assert received(broker, name) == list(range(MESSAGES))


def test_a_stream_client_outlives_the_daemon(tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={"clicks": 2}) as broker:
        with StreamClient(tmp_path / "in.stream", timeout=60) as client:
            with daemon_in(tmp_path, broker, **ONE_WORKER) as daemon:
                send(client, b"s", 0, 100)
                daemon.wait_settled(100)
                assert daemon.terminate() == 0
            later = threading.Thread(target=send, args=(client, b"s", 100, 100))
            later.start()  # waits for the daemon's restart
            with daemon_in(tmp_path, broker, **ONE_WORKER) as daemon:
                later.join(60)
                assert client.stats().connections == 2
                daemon.wait_settled(100)
        assert received(broker, b"s") == list(range(200))


def test_flush_returns_the_outcome_of_messages_since_the_previous_flush(tmp_path: Path) -> None:
    with (
        DevBroker(brokers=1, topics={"clicks": 2}) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER) as daemon,
        StreamClient(tmp_path / "in.stream", timeout=60, linger=0.01) as client,
    ):
        send(client, b"s", 0, 500)
        assert client.flush(60) == Outcome(500, 500, 0)
        for _ in range(10):
            client.send("nowhere", b"v")
        send(client, b"s", 500, 20)
        assert client.flush(60) == Outcome(30, 20, 10, {"BAD_TOPIC": 10})
        assert client.flush(60) == Outcome(0, 0, 0)
        assert received(broker, b"s") == list(range(520))
        daemon.wait_settled(530)


def test_flush_times_out_with_known_counts_when_kafka_is_down(tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={"clicks": 2}) as broker, daemon_in(tmp_path, broker, **ONE_WORKER) as daemon:
        with StreamClient(tmp_path / "in.stream", timeout=60) as client:
            send(client, b"s", 0, 10)
            client.flush(60)
            broker.broker_down(1)
            send(client, b"s", 10, 10)
            with pytest.raises(FlushError) as caught:
                client.flush(1)
            assert caught.value.outcome == Outcome(10, 0, 0)
            broker.broker_up(1)
        daemon.wait_settled(20)
        assert received(broker, b"s") == list(range(20))
