"""Fetch one broker's view of its cluster: Metadata v0, which every version from 0.8 to 4.x answers.

The request goes to each broker directly, because a Kafka client would answer from its own cache and from any broker.
ZooKeeper is asked by its four-letter commands, so that tests need no client library.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPLICA_NOT_AVAILABLE: Final = 9
"""The code by which v0 reports a replica that is down; the leader beside it is valid."""


@dataclass(frozen=True, slots=True)
class Partition:
    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    error: int

    @property
    def has_leader(self) -> bool:
        return self.leader >= 0 and self.error in {0, REPLICA_NOT_AVAILABLE}


@dataclass(frozen=True, slots=True)
class Metadata:
    brokers: frozenset[int]
    topics: Mapping[str, Mapping[int, Partition]]


def fetch_metadata(port: int, topics: Sequence[str] = (), timeout: float = 5.0) -> Metadata:
    """Ask the broker on `port` of loopback; no topic means all.  Raises `OSError`."""
    request = MetadataRequest[0](topics=list(topics))
    request.with_header(correlation_id=1, client_id="test")
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        frame = _receive(connection, int.from_bytes(_receive(connection, 4)))
    return _metadata(MetadataResponse.decode(frame, version=0, header=True))


def _receive(connection: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        if not (part := connection.recv(count - len(got))):
            raise ConnectionError("the broker closed the connection in the middle of its answer")
        got += part
    return bytes(got)


def _metadata(response: Any) -> Metadata:
    return Metadata(
        brokers=frozenset(broker.node_id for broker in response.brokers),
        topics={topic.name: {p.partition_index: _partition(p) for p in topic.partitions} for topic in response.topics},
    )


def _partition(entry: Any) -> Partition:
    return Partition(entry.leader_id, tuple(entry.replica_nodes), frozenset(entry.isr_nodes), entry.error_code)


def ask_zookeeper(port: int, word: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(word.encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode()


def registered_brokers(port: int) -> frozenset[int]:
    """Return the ids of the Kafka brokers with a live session."""
    words = ask_zookeeper(port, "dump").split()
    return frozenset(int(word.rpartition("/")[2]) for word in words if word.startswith("/brokers/ids/"))
