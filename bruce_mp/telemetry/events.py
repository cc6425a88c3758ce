"""Events from the message path for the status process: sums of discards, compression and traffic, and broker status.

A discard event sums all discards of one kind since the sender's last flush. The slab has the exact counts; an event
adds details that a counter lacks, such as topics, times and samples. So an event may be lost.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from collections.abc import Iterable
from typing import Final

import msgspec

from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus

__all__ = [
    "CompressionEvent",
    "DiscardEvent",
    "DuplicateEvent",
    "Event",
    "News",
    "SenderEvent",
    "TrafficEvent",
    "decode_events",
    "encode_events",
]


class DiscardEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` discarded messages of a topic, with the reason.

    `topic` is empty if it could not be parsed or if there were too many topics. Timestamps are the clients', in ms.
    `samples` are first bytes, the oldest first. `version` and `api_key` are the unsupported ones. `is_tcp` marks an
    unclean disconnect of a TCP connection.
    """

    reason: DiscardReason
    topic: bytes
    count: int
    min_timestamp: int
    max_timestamp: int
    samples: tuple[bytes, ...] = ()
    version: int | None = None
    api_key: int | None = None
    is_tcp: bool = False


class DuplicateEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a topic that were sent again although the broker may have stored them the first time."""

    topic: bytes
    count: int
    min_timestamp: int
    max_timestamp: int


class SenderEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a local process that were discarded for a reason; `sample` is the start of the last one.

    `command` is the name of the process, or empty after its end.
    """

    reason: DiscardReason
    pid: int
    uid: int
    command: str
    count: int
    sample: bytes


class CompressionEvent(msgspec.Struct, frozen=True, tag=True):
    """Gain and cost of compression for batches of a topic with a codec.

    The dispatcher compressed `tried` batches and sent `kept` of them compressed; it did not try `skipped` batches.
    Bytes and CPU time (`micros`) refer to the tried batches.
    """

    topic: bytes
    codec: str
    tried: int = 0
    kept: int = 0
    skipped: int = 0
    plain_bytes: int = 0
    packed_bytes: int = 0
    micros: int = 0

    def plus(self, other: "CompressionEvent") -> "CompressionEvent":
        """Add an event of the same topic and codec."""
        topic, codec, *numbers = msgspec.structs.astuple(self)
        others = msgspec.structs.astuple(other)[2:]
        return CompressionEvent(topic, codec, *map(sum, zip(numbers, others, strict=True)))


class TrafficEvent(msgspec.Struct, frozen=True, tag=True):
    """Messages of a topic that a broker acknowledged, and error responses for the topic.

    `size` sums the bytes of keys, values and headers. `delays` counts messages by latency bucket, see
    `delays.BOUNDS_MS`. `last_error` is empty without an error. `topic` is empty for the sum of the topics beyond the
    bound.
    """

    topic: bytes
    messages: int
    size: int
    delays: dict[int, int]
    errors: int
    last_error: str


Event = DiscardEvent | DuplicateEvent | SenderEvent
"""Events that discard reports consist of."""
News = Event | CompressionEvent | TrafficEvent | BrokerStatus | RouterStatus
_DECODER: Final[msgspec.msgpack.Decoder[list[News]]] = msgspec.msgpack.Decoder(list[News])


def encode_events(events: Iterable[News]) -> bytes:
    """Encode events as one message of the link DISCARDS."""
    return msgspec.msgpack.encode(list(events))


def decode_events(data: bytes) -> list[News]:
    """Decode a message from `encode_events`. Raise RemoteProtocolError for other bytes."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"A process sent an event that cannot be read: {error}.") from error
