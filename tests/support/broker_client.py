"""A blocking socket around a `BrokerConnection`."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.connection_events import (
    BytesToSend,
    ConnectionReady,
    Failed,
    ProduceAcked,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.record_batch import Producer

if TYPE_CHECKING:
    from typing import Self

    from bruce_mp.protocol.kafka.connection_events import EncodedRequest, Event
    from bruce_mp.protocol.kafka.kafka_types import PartitionAck, PartitionData

__all__ = ["BrokerClient"]

TIMEOUT_S: Final = 20.0
E = TypeVar("E")


class BrokerClient:
    """A connection to `host:port` that is ready for requests."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.connection = BrokerConnection("bruce-test", address, timeout=TIMEOUT_S)
        self.connection.on_connecting(time.monotonic())
        self._socket.sendmsg(self.connection.on_connected(time.monotonic()))
        self._waiting: list[Event] = []
        self.wait(ConnectionReady)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def wait(self, kind: type[E]) -> E:
        """Return the next event, which must be of this kind; raise the error of a failure."""
        while True:
            while not self._waiting:
                data = self._socket.recv(1 << 16)
                self._waiting += self.connection.receive(data, time.monotonic()) if data else self.connection.on_eof()
            event = self._waiting.pop(0)
            if isinstance(event, BytesToSend):
                self._socket.sendall(event.data)
            elif isinstance(event, Failed):
                raise event.error
            else:
                assert isinstance(event, kind)
                return event

    def send(self, sent: EncodedRequest) -> int:
        self._socket.sendall(b"".join(sent.buffers))
        return sent.correlation_id

    def produce(self, *data: PartitionData, acks: int = -1) -> int:
        return self.send(self.connection.request_produce(data, time.monotonic(), acks=acks, timeout_ms=5000))

    def acks(self) -> tuple[PartitionAck, ...]:
        return tuple(self.wait(ProduceAcked).response.acks)

    def producer_id(self) -> Producer:
        give_up_at = time.monotonic() + TIMEOUT_S
        while True:
            self.send(self.connection.request_producer_id(time.monotonic()))
            got = self.wait(ProducerIdReceived).response
            if got.error == 0:
                return Producer(got.producer_id, got.producer_epoch, 0)
            assert got.is_retriable
            assert time.monotonic() < give_up_at, got
