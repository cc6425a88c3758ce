"""The latency histogram in the counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.latency_histogram import BUCKET_COUNT, read_latencies
from support.filled_slab import FilledSlab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledSlab]:
    slab = FilledSlab(tmp_path / "slab", known=(b"news",))
    yield slab
    slab.close()


def test_raised_counters_are_read_back(filled: FilledSlab) -> None:
    for bucket, amount in {2: 5, BUCKET_COUNT - 1: 1}.items():
        filled.input.add(Counter.AckDelayFirst + bucket, amount)
    filled.input.add(Counter.AckDelayMs, 35)
    buckets, sum_ms = read_latencies(filled.slab)
    assert buckets == [0, 0, 5] + [0] * 12 + [1]
    assert sum_ms == 35
