"""Events that processes report to the status process: discards, compression, traffic, and broker status.

Separate because the tests of the reporting processes decode events with it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bruce_mp.discards.events import DiscardReportEvent
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus
from bruce_mp.telemetry.compression import CompressionEvent
from bruce_mp.telemetry.traffic import TrafficEvent

__all__ = ["ReportedEvent", "decode_events"]

ReportedEvent = DiscardReportEvent | CompressionEvent | TrafficEvent | BrokerStatus | RouterStatus
_DECODER: Final[msgspec.msgpack.Decoder[list[ReportedEvent]]] = msgspec.msgpack.Decoder(list[ReportedEvent])


def decode_events(data: bytes) -> list[ReportedEvent]:
    """Decode the events in a frame of the link REPORTS. Raise RemoteProtocolError if `data` is no such frame."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError("A process sent an event that cannot be read.") from error
