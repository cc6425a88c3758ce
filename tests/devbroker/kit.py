"""Helpers of the embedded broker's tests: batches, requests, a raw connection, a broker without a socket."""

from __future__ import annotations

import select
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from bruce_mp.devbroker.apis import APIS, Context
from bruce_mp.devbroker.cluster import Cluster
from bruce_mp.devbroker.faults import NO_FAULTS, TriggeredFaults
from bruce_mp.devbroker.statistics import Statistics
from bruce_mp.devbroker.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.devbroker.batch import BatchCheckSettings

TopicData = ProduceRequest.TopicProduceData
PartitionData = TopicData.PartitionProduceData


def make_batch(
    count: int = 1,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    timestamp: int = 1000,
    value: bytes = b"value",
) -> bytes:
    """Build a record batch with kafka-python.

    It has `count` records with increasing timestamps; `producer` is (id, epoch, sequence).
    """
    producer_id, epoch, sequence = producer
    builder = MemoryRecordsBuilder(
        2, codec, 1 << 24, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    for number in range(count):
        builder.append(timestamp + number, b"key%d" % number, value, [("header", b"h")])
    builder.close()
    return bytes(builder.buffer())


def produce(parts: Iterable[tuple[str, int, bytes | None]], *, version: int = 9, acks: int = -1) -> Any:
    """Build a Produce request with one batch for each (topic, partition)."""
    topics = [TopicData(name=name, partition_data=[PartitionData(index=i, records=raw)]) for name, i, raw in parts]
    return ProduceRequest(version=version, acks=acks, timeout_ms=1000, topic_data=topics)


def frame_of(request: Any, correlation_id: int = 7) -> bytes:
    """Return the request on the wire, including its length."""
    request.with_header(correlation_id, "kit")
    return bytes(request.encode(header=True, framed=True))


class Desk:
    """Brokers without sockets: requests and responses are encoded and decoded, as on a connection."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        auto_create: int = 0,
        limits: BatchCheckSettings | None = None,
        max_bytes: int = 1 << 24,
    ) -> None:
        self.cluster = Cluster(brokers, max_bytes=max_bytes, auto_create_partitions=auto_create, limits=limits)
        for broker in self.cluster.broker_ids:
            self.cluster.register(broker, "127.0.0.1", 9000 + broker)
        self.statistics = Statistics()

    def ask(self, request: Any, response_class: Any, *, broker: int = 1, triggered: TriggeredFaults = NO_FAULTS) -> Any:
        """Return the decoded response, or None."""
        incoming = decode(frame_of(request)[4:])
        context = Context(APIS, self.cluster, self.statistics, broker, incoming.version, triggered)
        response = incoming.api.handle(incoming.request, context)
        if response is None:
            return None
        answer = bytes(encode(response, incoming.correlation_id))
        return response_class.decode(answer, version=response.version, header=True, framed=True)


class RawClient:
    """A blocking connection to `host:port` that sends and receives frames."""

    def __init__(self, address: str, timeout: float = 10.0, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout, (source, 0))

    def send(self, request: Any, correlation_id: int = 7) -> None:
        self._socket.sendall(frame_of(request, correlation_id))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes. Raise EOFError if the broker closes before."""
        got = b""
        while len(got) < count:
            more = self._socket.recv(count - len(got))
            if not more:
                raise EOFError(got)
            got += more
        return got

    def frame(self) -> bytes:
        """Return the next response, including its length."""
        prefix = self.exactly(4)
        return prefix + self.exactly(struct.unpack(">i", prefix)[0])

    def receive(self, response_class: Any, version: int) -> Any:
        """Return the next response, decoded, with its header."""
        return response_class.decode(self.frame(), version=version, header=True, framed=True)

    def readable(self) -> bool:
        """Return True if bytes can be read now."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def rest(self) -> bytes:
        """Return all bytes until the broker closes."""
        got = b""
        while more := self._socket.recv(1 << 16):
            got += more
        return got

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
