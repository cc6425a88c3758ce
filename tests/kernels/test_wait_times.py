"""Waiting times of batches' messages: their buckets and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.kernels import WaitTimes, wait_times
from bruce_mp.slab import layout as lay
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS
from support.filled_slab import NOW_MS, FilledSlab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.slab.runs import Segment

NEWS, CLICKS = 1, 2


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledSlab]:
    slab = FilledSlab(tmp_path / "slab", known=(b"news", b"clicks"))
    yield slab
    slab.close()


def batch(topic: int, *segments: Segment) -> BuiltBatch:
    return BuiltBatch(topic, 0, 0, 0, segments)


def put(filled: FilledSlab, messages: int, arrived_ms: int, topic: bytes = b"news") -> Segment:
    """Fill a run that began at a given time."""
    (segment,) = filled.receive(topic, messages)
    at = filled.slab.chunk_at(segment.chunk) + segment.run
    filled.slab.store_signed(at + lay.RUN_ARRIVED_MS, arrived_ms)
    return segment


@pytest.mark.parametrize(
    ("delay_ms", "bucket"), [(-5, 0), (0, 0), (1, 0), (2, 1), (1000, 8), (1001, 9), (10**9, len(BOUNDS_MS))]
)
def test_messages_count_in_the_bucket_of_their_delay(filled: FilledSlab, delay_ms: int, bucket: int) -> None:
    segment = put(filled, 7, NOW_MS)
    waited_ms = 7 * max(0, delay_ms)
    found = WaitTimes(7, segment.payload, waited_ms, {bucket: 7})
    assert wait_times(filled.slab, [batch(NEWS, segment)], BOUNDS_MS, NOW_MS + delay_ms) == (found, {NEWS: found})


def test_batches_of_a_topic_are_summed_across_other_topics(filled: FilledSlab) -> None:
    first, second, third = put(filled, 2, NOW_MS - 3), put(filled, 3, NOW_MS - 4), put(filled, 4, NOW_MS - 100)
    other = put(filled, 5, NOW_MS, b"clicks")
    sent = [batch(NEWS, first, second), batch(CLICKS, other), batch(NEWS, third)]
    size, waited_ms = first.payload + second.payload + third.payload, 2 * 3 + 3 * 4 + 4 * 100
    assert wait_times(filled.slab, sent, (1, 10), NOW_MS) == (
        WaitTimes(14, size + other.payload, waited_ms, {0: 5, 1: 5, 2: 4}),
        {NEWS: WaitTimes(9, size, waited_ms, {1: 5, 2: 4}), CLICKS: WaitTimes(5, other.payload, 0, {0: 5})},
    )


def test_no_batch_has_no_wait_time(filled: FilledSlab) -> None:
    assert wait_times(filled.slab, [], BOUNDS_MS, NOW_MS) == (WaitTimes(0, 0, 0, {}), {})


def test_an_invalid_segment_is_refused(filled: FilledSlab) -> None:
    segment = put(filled, 1, NOW_MS)
    bad = [
        segment._replace(chunk=10**6),
        segment._replace(run=segment.run + 8),
        segment._replace(generation=99),
        segment._replace(first=segment.first + 10**5),
    ]
    for one in bad:
        with pytest.raises(SlabError):
            wait_times(filled.slab, [batch(NEWS, segment), batch(NEWS, one)], BOUNDS_MS, NOW_MS)
