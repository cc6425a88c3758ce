"""What the processes of the message path tell status: sums of discards, compression and traffic, and standings.

A discard event stands for all discards of one kind since the sender's last flush.  The exact counts are in the slab;
an event adds what a counter cannot say: which topics, which times, what the bytes looked like.  So it may get lost.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from collections.abc import Iterable
from typing import Final

import msgspec

from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.telemetry.standings import BrokerStanding, RouterStanding

__all__ = [
    "CompressionEvent",
    "CulpritEvent",
    "DiscardEvent",
    "DuplicateEvent",
    "Event",
    "News",
    "TrafficEvent",
    "decode_events",
    "encode_events",
]


class DiscardEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a topic were discarded for a reason.

    `topic` is empty where it was not understood or there were too many topics.  Timestamps are the clients', in ms.
    `samples` are first bytes, the oldest first.  `version` and `api_key` are those that are not supported.
    `is_tcp`: an unclean disconnect was one of TCP.
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
    """`count` messages of a topic were sent again although the broker may have kept them the first time."""

    topic: bytes
    count: int
    min_timestamp: int
    max_timestamp: int


class CulpritEvent(msgspec.Struct, frozen=True, tag=True):
    """A local process sent `count` messages that were discarded for a reason; `sample` is the beginning of the last.

    `command` is its name, empty if it was gone already.
    """

    reason: DiscardReason
    pid: int
    uid: int
    command: str
    count: int
    sample: bytes


class CompressionEvent(msgspec.Struct, frozen=True, tag=True):
    """What compressing batches of a topic with a codec brought, and what it cost.

    Of the `tried` batches the `kept` ones were sent compressed; `skipped` ones were not tried.  Bytes and CPU time
    (`micros`) are of the tried ones.
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
        """Both together; of the same topic and codec."""
        topic, codec, *numbers = msgspec.structs.astuple(self)
        others = msgspec.structs.astuple(other)[2:]
        return CompressionEvent(topic, codec, *map(sum, zip(numbers, others, strict=True)))


class TrafficEvent(msgspec.Struct, frozen=True, tag=True):
    """Messages of a topic that a broker acknowledged, and answers for it that were errors.

    `size` is the bytes of their keys, values and headers; `delays` the messages by bucket of the time to their ack,
    see `delays.BOUNDS_MS`.  `last_error` is empty if there was none.  The topic is empty where there were too many.
    """

    topic: bytes
    messages: int
    size: int
    delays: dict[int, int]
    errors: int
    last_error: str


Event = DiscardEvent | DuplicateEvent | CulpritEvent
"""What discard reports are made of."""
News = Event | CompressionEvent | TrafficEvent | BrokerStanding | RouterStanding
_DECODER: Final[msgspec.msgpack.Decoder[list[News]]] = msgspec.msgpack.Decoder(list[News])


def encode_events(events: Iterable[News]) -> bytes:
    """Events as one message of the link DISCARDS."""
    return msgspec.msgpack.encode(list(events))


def decode_events(data: bytes) -> list[News]:
    """The reverse of `encode_events`.  Raises RemoteProtocolError for bytes that are no events."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"A process sent an event that cannot be read: {error}.") from error
