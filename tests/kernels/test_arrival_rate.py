"""Naps happen where they save CPU, and never last until a queue or a send buffer is full."""

from __future__ import annotations

from typing import Final

import pytest

from bruce_mp.kernels import ArrivalRate, Coalescing

LEFT_US: Final = 1_000_000
"""The time until the next work of most tests, longer than any nap."""
NAPS: Final = Coalescing(max_nap_us=2000, max_messages=128, max_bytes=53_248)


def after(messages_per_ms: int, size: int, coalescing: Coalescing = NAPS) -> int:
    """Return the length of a nap after some time at a constant rate."""
    pace = ArrivalRate(coalescing)
    pace.nap_us(1_000_000, LEFT_US)
    for _ in range(10):
        pace.add(messages_per_ms, messages_per_ms * size)
    return pace.nap_us(1_010_000, LEFT_US)


@pytest.mark.parametrize(
    ("messages_per_ms", "size", "nap_us"),
    [
        (1, 100, 0),  # too few messages
        (2, 100, 2000),
        (20, 100, 2000),
        (100, 10, 675),  # the send buffer: 53,248 / 788 messages
        (100, 100, 550),
        (200, 100, 0),  # full too soon
        (20, 1000, 961),
        (20, 10_000, 0),
    ],
)
def test_the_pause_depends_on_the_arrival_rate_and_the_message_size(
    messages_per_ms: int, size: int, nap_us: int
) -> None:
    assert after(messages_per_ms, size) == nap_us


def test_the_pause_is_bounded_by_the_queue_length() -> None:
    assert after(50, 10, NAPS._replace(max_messages=32)) == 640


def test_the_pause_is_zero_when_coalescing_is_disabled() -> None:
    assert after(20, 100, Coalescing(0, 0, 0)) == 0
    assert after(20, 100, NAPS._replace(max_nap_us=399)) == 0


@pytest.mark.parametrize(("left_us", "nap_us"), [(2001, 2000), (1999, 1999), (400, 400), (399, 0), (0, 0)])
def test_the_pause_ends_when_the_next_work_is_due(left_us: int, nap_us: int) -> None:
    pace = ArrivalRate(NAPS)
    pace.nap_us(1_000_000, LEFT_US)
    pace.add(40, 4000)
    assert pace.nap_us(1_002_000, left_us) == nap_us


def test_the_rate_covers_the_last_two_milliseconds() -> None:
    pace = ArrivalRate(NAPS)
    pace.nap_us(1_000_000, LEFT_US)
    pace.add(40, 4000)
    assert pace.nap_us(1_001_999, LEFT_US) == 0
    assert pace.nap_us(1_002_000, LEFT_US) == 2000
    pace.add(1, 100)
    assert pace.nap_us(1_003_999, LEFT_US) == 2000
    assert pace.nap_us(1_004_000, LEFT_US) == 0


def test_a_blocked_sender_counts_with_its_earlier_rate() -> None:
    """A sender that blocks during naps fills its buffer and then sends nothing."""
    pace = ArrivalRate(NAPS)
    pace.nap_us(1_000_000, LEFT_US)
    pace.add(100 * 2, 200 * 100)
    assert pace.nap_us(1_002_000, LEFT_US) == 550
    pace.add(60, 6000)
    assert pace.nap_us(1_004_000, LEFT_US) == 550
    pace.add(60, 6000)
    assert pace.nap_us(1_006_000, LEFT_US) == 550

    pace = ArrivalRate(NAPS._replace(max_messages=32))
    pace.nap_us(1_000_000, LEFT_US)
    pace.add(100, 1000)
    assert pace.nap_us(1_002_000, LEFT_US) == 640
    pace.add(60, 600)
    assert pace.nap_us(1_004_000, LEFT_US) == 640


def test_the_pause_is_skipped_periodically_to_measure_the_rate() -> None:
    pace = ArrivalRate(NAPS)
    pace.nap_us(1_000_000, LEFT_US)
    coalescing = []
    for now_us in range(1_002_000, 2_004_000, 2000):
        pace.add(40, 4000)
        coalescing.append(pace.nap_us(now_us, LEFT_US))
    assert set(coalescing) == {0, 2000}
    assert [at for at, nap_us in enumerate(coalescing) if not nap_us] == [251]
