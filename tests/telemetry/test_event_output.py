"""Sums on the way to the status process."""

from __future__ import annotations

from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.compression import CompressionEvent, CompressionSums
from bruce_mp.telemetry.event_output import EventOutput

EVENT = CompressionEvent(b"topic", "lz4", tried=1, kept=1)


class Link:
    """A link that refuses data while it is full."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_full = False

    def send_bytes(self, data: bytes) -> bool:
        if not self.is_full:
            self.sent.append(data)
        return not self.is_full


def test_sums_are_sent_once() -> None:
    link, sums = Link(), CompressionSums()
    output = EventOutput(link, sums)
    pending = [output.has_pending]
    output.flush()
    sums.add(EVENT)
    pending.append(output.has_pending)
    output.flush()
    output.flush()
    pending.append(output.has_pending)
    assert pending == [False, True, False]
    assert [decode_events(data) for data in link.sent] == [[EVENT]]


def test_sums_grow_while_the_link_is_full() -> None:
    link, sums = Link(), CompressionSums()
    output = EventOutput(link, sums)
    link.is_full = True
    sums.add(EVENT)
    output.flush()
    assert output.has_pending
    sums.add(EVENT)
    link.is_full = False
    output.flush()
    assert [decode_events(data) for data in link.sent] == [[EVENT.plus(EVENT)]]
