"""A daemon with stream inputs, and connections to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client.barrier import Level, decode_answer, encode_barrier
from bruce_mp.protocol.client.inquiry import AttemptOutcome, decode_inquiry_answer, encode_inquiry
from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker
    from bruce_mp.protocol.client.barrier import BarrierAnswer
    from bruce_mp.protocol.client.inquiry import InquiryAnswer
    from support.kafka_cluster import KafkaCluster

__all__ = [
    "ONE_WORKER",
    "TOPICS",
    "WORKERS",
    "ask",
    "connect",
    "connections_of",
    "daemon_in",
    "inquire",
    "message",
    "names",
    "read_answer",
]

TOPICS: Final = tuple(f"topic-{number}" for number in range(4))
WORKERS: Final = 2
ONE_WORKER: Final = {"input.streams.workers": 1}
PATIENCE_S: Final = 60


def daemon_in(directory: Path, broker: DevBroker | KafkaCluster, **more: object) -> Daemon:
    """Return a daemon with stream inputs, not started."""
    settings: dict[str, object] = {
        "input.unix_stream.enable": "true",
        "input.unix_stream.path": directory / "in.stream",
        "input.tcp.enable": "true",
        "input.tcp.port": 0,
        "input.streams.workers": WORKERS,
        "input.unix_datagram.when_full": "block",
    }
    return Daemon(directory, broker.bootstrap, settings | more)


def connect(daemon: Daemon, kind: str = "unix") -> socket.socket:
    """Connect to an input of the kind `unix` or `tcp`."""
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE_S)
        connection.connect(str(daemon.stream_path))
        return connection
    return socket.create_connection(("127.0.0.1", daemon.tcp_port), PATIENCE_S)


def message(client: int, number: int, size: int = 0) -> bytes:
    """Return message `number` of client `client`."""
    topic, value = TOPICS[client % len(TOPICS)], b"%d:%d:" % (client, number) + bytes(size)
    return encode(topic, value, partition_key=None if client % 3 else client, timestamp_ms=number)


def names(values: list[bytes]) -> list[tuple[int, int]]:
    """Return client and number of each value."""
    return [(int(client), int(number)) for client, number, *_ in (value.split(b":", 2) for value in values)]


def ask(
    connection: socket.socket, token: int = 1, level: Level = Level.DELIVERED, limit_ms: int = 60_000
) -> BarrierAnswer:
    """Send a barrier and wait for its answer, which must be the next one."""
    connection.sendall(encode_barrier(token.to_bytes(8, "big"), level, limit_ms))
    answer = read_answer(connection)
    assert answer.token == token.to_bytes(8, "big")
    return answer


def inquire(daemon: Daemon, name: bytes) -> InquiryAnswer:
    """Return the outcome of a unique attempt, once all its messages have one."""
    with connect(daemon) as connection:
        while True:
            connection.sendall(encode_inquiry(bytes(8), name))
            answer = decode_inquiry_answer(_read_frame(connection))
            if answer.outcome is not AttemptOutcome.PENDING:
                return answer
            ask(connection, level=Level.RECEIVED)


def read_answer(connection: socket.socket) -> BarrierAnswer:
    """Return the next answer on a connection. Raises ConnectionError at its end."""
    return decode_answer(_read_frame(connection))


def _read_frame(connection: socket.socket) -> bytes:
    head = _read(connection, 4)
    return head + _read(connection, int.from_bytes(head, "big") - 4)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("The daemon closed the connection.")
        data += more
    return data


def connections_of(daemon: Daemon) -> list[int]:
    """Return the number of connections of each worker."""
    with daemon.open_slab() as slab:
        rows = [slab.row_at(lay.ROW_FIRST_INPUT + 1 + i) for i in range(WORKERS)]
        return [slab.longs[(row + lay.ROW_COUNTERS >> 3) + Counter.StreamConnections] for row in rows]
