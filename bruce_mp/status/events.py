"""Decode the events that processes report: sums of discards, compression and traffic, and broker status.

Separate because the tests of all senders decode their events with it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bruce_mp.discards.events import Event
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus
from bruce_mp.telemetry.compression import CompressionEvent
from bruce_mp.telemetry.traffic import TrafficEvent

__all__ = ["News", "decode_events"]

News = Event | CompressionEvent | TrafficEvent | BrokerStatus | RouterStatus
_DECODER: Final[msgspec.msgpack.Decoder[list[News]]] = msgspec.msgpack.Decoder(list[News])


def decode_events(data: bytes) -> list[News]:
    """Decode a message of the link REPORTS. Raise RemoteProtocolError for other bytes."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"A process sent an event that cannot be read: {error}.") from error
