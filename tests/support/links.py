"""The sending ends of links, without a receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.message_copies import decode_copies

if TYPE_CHECKING:
    from bruce_mp.status.event_decoder import ReportedEvent
    from bruce_mp.telemetry.message_copies import Copy

__all__ = ["Keeping", "Nowhere"]


class Nowhere:
    """A link that accepts all data, and loses it."""

    def send_bytes(self, _: bytes) -> bool:
        return True


class Keeping:
    """A link that keeps its data in `sent`, and refuses all data while it is full."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_full = False
        self.asked = 0

    def send_bytes(self, data: bytes) -> bool:
        self.asked += 1
        if not self.is_full:
            self.sent.append(data)
        return not self.is_full

    def events(self) -> list[ReportedEvent]:
        return [event for data in self.sent for event in decode_events(data)]

    def copies(self) -> list[Copy]:
        return [copy for data in self.sent for copy in decode_copies(data)]
