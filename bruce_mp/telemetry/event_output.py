"""The sending end of the link REPORTS to the status process; `status.event_decoder` is the receiving end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.compression import CompressionSums
    from bruce_mp.telemetry.message_copies import ByteSender
    from bruce_mp.telemetry.traffic import TrafficSums

__all__ = ["EventOutput", "encode_events"]


def encode_events(events: Iterable[msgspec.Struct]) -> bytes:
    """Encode events as one frame of the link REPORTS."""
    return msgspec.msgpack.encode(list(events))


class EventOutput:
    """A sender of `sums` to the status process. `sums` grow until the link accepts them, and then restart at 0."""

    def __init__(self, sender: ByteSender, sums: CompressionSums | TrafficSums) -> None:
        self._sender = sender
        self._sums = sums

    @property
    def has_pending(self) -> bool:
        return bool(self._sums)

    def flush(self, *reports: msgspec.Struct) -> None:
        """Send `reports` and the sums in one frame. If the link refuses it, keep the sums and drop `reports`."""
        sums = self._sums.events() if self._sums else ()
        if (reports or sums) and self._sender.send_bytes(encode_events([*reports, *sums])):
            self._sums.clear()

    def close(self) -> None:
        self.flush()
