"""Naps of a stream worker: their length by rate, size and batching."""

from __future__ import annotations

import pytest

from bruce_mp.config.sections import Batching, BatchLimits, CombinedBatching, DefaultBatching, TopicRule
from bruce_mp.input.stream_coalescing import LONGEST_US, UNBATCHED_US, StreamRate, stream_coalescing_for
from bruce_mp.kernels import Coalescing
from support.flow_parts import a_config

WINDOW_US = 2000
SLOW = Batching(
    configs={"slow": BatchLimits(time_ms=1000)},
    combined=CombinedBatching(config="slow"),
    default=DefaultBatching(action="per_topic", config="slow"),
)
LIMITS = Coalescing(4000, 1 << 30, 50_000)


def nap_at(messages_per_s: int, size: int, limits: Coalescing = LIMITS) -> int:
    """Return the nap after half a second of an even load in wake-ups of 2 ms."""
    rate, now_us, nap_us = StreamRate(limits), 0, 0
    for _ in range(249):
        now_us += WINDOW_US
        rate.add(messages_per_s * WINDOW_US // 1_000_000, size * messages_per_s * WINDOW_US // 1_000_000)
        nap_us = rate.nap_us(now_us)
    return nap_us


def test_a_worker_naps_when_a_few_messages_come_in_that_time() -> None:
    assert nap_at(3000, 100) == 4000


def test_a_worker_does_not_nap_for_rare_messages() -> None:
    assert nap_at(500, 100) == 0


def test_naps_are_shorter_when_clients_would_fill_their_buffers() -> None:
    assert 400 <= nap_at(10_000, 2000) < 4000
    assert nap_at(1_000_000, 100) == 0


def test_a_nap_has_the_length_that_the_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("bruce_mp.input.stream_coalescing.time.sleep", naps.append)
    rate = StreamRate(LIMITS)
    for lengths in ([0, 4000], [300]):
        naps.clear()
        for length in lengths:
            monkeypatch.setattr(rate, "nap_us", lambda _, length=length: length)
            rate.nap()
        assert naps == [length / 1e6 for length in lengths if length]


@pytest.mark.parametrize(
    ("batching", "longest_us"),
    [
        (Batching(), 90_000 // 16),
        (SLOW, LONGEST_US),
        (Batching(topics={"urgent": TopicRule(action="none")}), UNBATCHED_US),
    ],
)
def test_the_longest_nap_follows_the_batching(batching: Batching, longest_us: int) -> None:
    assert stream_coalescing_for(a_config(batching=batching)).longest_us == longest_us
