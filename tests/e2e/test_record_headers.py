"""Record headers through the whole daemon, by every input: read back as they were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import DatagramClient, StreamClient, TcpClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.client.discard_line import parse_line
from bruce_mp.protocol.client.messages import encode
from support.processes import run_bruce
from support.stream_inputs import daemon_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bruce_mp.client import Client
    from support.daemon import Daemon
    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

Headers = tuple[tuple[str, bytes | None], ...]

TOPIC: Final = "headed"
HEADERS: Final[tuple[Headers, ...]] = (
    (),
    (("a", b"1"),),
    (("größe", "ß".encode()), ("", b""), ("null", None), ("a", b"twice"), ("a", b"again")),
    (("k" * 32_767, bytes(range(256)) * 127),),
    tuple((f"{number}", b"\xff" * (number % 5)) for number in range(1000)),
)
RecordContent = tuple[bytes | None, bytes | None, Headers]


def sent(kind: str) -> list[RecordContent]:
    """Return value, key and headers of each message, small ones and some that need several chunks."""
    sizes = (10, 30_000)
    return [
        (b"%b:%d:%d:" % (kind.encode(), size, number) + bytes(size), b"key" if number % 2 else None, headers)
        for size in sizes
        for number, headers in enumerate(HEADERS)
        if size + sum(6 + len(key) * 2 + len(value or b"") for key, value in headers) < 60_000 or kind != "datagram"
    ]


def send_all(client: Client, kind: str) -> None:
    with client:
        for number, (value, key, headers) in enumerate(sent(kind)):
            partition_key = number if number % 3 else None
            client.send(TOPIC, value or b"", key or b"", partition_key, headers=headers)


def send_by_all_inputs(daemon: Daemon) -> list[RecordContent]:
    """Send by datagrams, UNIX streams and TCP, also messages of version 1 without headers."""
    send_all(DatagramClient(daemon.socket_path, timeout=60, send_buffer=200_000), "datagram")
    send_all(StreamClient(daemon.stream_path, timeout=60), "unix")
    send_all(TcpClient(daemon.tcp_port, timeout=60), "tcp")
    plain = encode(TOPIC, b"plain", timestamp_ms=1)
    daemon.send_encoded((len(plain) + 4).to_bytes(4) + plain[4:6] + b"\0\1" + plain[8:] + bytes(4))
    return [*sent("datagram"), *sent("unix"), *sent("tcp"), (b"plain", None, ())]


def ordered(contents: Iterable[RecordContent]) -> list[RecordContent]:
    return sorted(contents, key=lambda each: each[0] or b"")


def test_headers_of_the_send_command_reach_the_broker(tmp_path: Path) -> None:
    words = ("send", "--topic", TOPIC, "--value", "v", "--count", "3")
    headers = [word for header in ("a=1=2", "empty=", "null", "a=again", "größe=ß") for word in ("--header", header)]
    with DevBroker(topics={TOPIC: 1}) as broker, daemon_in(tmp_path, broker) as daemon:
        for option, path in (("--socket-path", daemon.socket_path), ("--stream-socket-path", daemon.stream_path)):
            assert run_bruce(*words, option, path, *headers).returncode == 0
        assert daemon.wait_settled(6).delivered == 6
        [records] = broker.fetch(TOPIC)
    expected: Headers = (("a", b"1=2"), ("empty", b""), ("null", None), ("a", b"again"), ("größe", "ß".encode()))
    assert [(each.value, each.headers) for each in records] == [(b"v", expected)] * 6


def test_record_headers_reach_kafka(tmp_path: Path, kafka_versions: KafkaCluster) -> None:
    kafka_versions.create_topic(TOPIC, 4)
    with daemon_in(tmp_path, kafka_versions) as daemon:
        expected = send_by_all_inputs(daemon)
        books = daemon.wait_settled(len(expected), 120)
        assert books.delivered == len(expected)
    records = [each for some in kafka_versions.read_all(TOPIC).values() for each in some]
    assert ordered((each.value, each.key, each.headers) for each in records) == ordered(expected)


def test_a_discarded_message_keeps_its_headers_in_the_discard_file(tmp_path: Path) -> None:
    path = tmp_path / "discards"
    settings = {"discard_log.enable": "true", "discard_log.path": path}
    headers: Headers = (("a", b"1"), ("b", None))
    with DevBroker(topics={TOPIC: 1}) as broker, daemon_in(tmp_path, broker, **settings) as daemon:
        daemon.send("nobody", b"v", headers=headers)
        assert daemon.wait_settled(1).discarded == {"BAD_TOPIC": 1}
        daemon.terminate()
    (line,) = [parse_line(line) for line in path.read_bytes().splitlines()]
    assert line.headers == ((b"a", b"1"), (b"b", None))
