from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.delays import BOUNDS_MS, ack_delays, read_delays
from support.filled_slab import NOW_MS, FilledSlab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledSlab]:
    slab = FilledSlab(tmp_path / "slab", known=(b"news",))
    yield slab
    slab.close()


@pytest.mark.parametrize(
    ("delay_ms", "bucket"), [(-5, 0), (0, 0), (1, 0), (2, 1), (1000, 8), (1001, 9), (10**9, len(BOUNDS_MS))]
)
def test_messages_count_in_the_bucket_of_their_delay(filled: FilledSlab, delay_ms: int, bucket: int) -> None:
    raises = ack_delays(filled.slab, filled.receive(b"news", 7), NOW_MS + delay_ms)
    assert raises == {Counter.AckDelayFirst + bucket: 7, Counter.AckDelayMs: 7 * max(0, delay_ms)}


def test_what_is_raised_is_read(filled: FilledSlab) -> None:
    segments = [*filled.receive(b"news", 2), *filled.receive(b"news", 3)]
    for counter, amount in ack_delays(filled.slab, segments, NOW_MS + 7).items():
        filled.input.add(counter, amount)
    buckets, sum_ms = read_delays(filled.slab)
    assert buckets == [0, 0, 5] + [0] * 13
    assert sum_ms == 35
