"""Sums on the way to the status process."""

from __future__ import annotations

from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.compression import CompressionEvent, CompressionSums
from bruce_mp.telemetry.event_output import EventOutput
from support.links import Keeping

EVENT = CompressionEvent(b"topic", "lz4", tried=1, kept=1)


def test_sums_are_sent_once() -> None:
    link, sums = Keeping(), CompressionSums()
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
    link, sums = Keeping(), CompressionSums()
    output = EventOutput(link, sums)
    link.is_full = True
    sums.add(EVENT)
    output.flush()
    assert output.has_pending
    sums.add(EVENT)
    link.is_full = False
    output.flush()
    assert [decode_events(data) for data in link.sent] == [[EVENT.plus(EVENT)]]
