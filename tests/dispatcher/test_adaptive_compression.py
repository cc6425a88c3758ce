"""Trials: a topic that does not get smaller is left alone, and tried again now and then."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.dispatcher.compression import (
    MAX_FAILED_TRIALS,
    MAX_SKIP_S,
    MAX_SKIPPED_BATCHES,
    MIN_SKIPPED_BATCHES,
    WORTHWHILE_PERCENT,
    CompressionTrials,
)
from support.examples import examples

GOOD, BAD = 10, 100


def tries(trials: CompressionTrials, batches: list[int], now: float = 0.0) -> list[int]:
    """The places of those batches (by their size when compressed, of 100) that were tried."""
    tried = []
    for at, size in enumerate(batches):
        if trials.count_batch(now):
            tried.append(at)
            trials.record(100, size, now)
    return tried


def rested() -> CompressionTrials:
    trials = CompressionTrials()
    assert tries(trials, [BAD] * MAX_FAILED_TRIALS) == list(range(MAX_FAILED_TRIALS))
    assert trials.is_suspended
    return trials


def test_compressible_batches_are_always_compressed() -> None:
    trials = CompressionTrials()
    batches = ([BAD] * (MAX_FAILED_TRIALS - 1) + [WORTHWHILE_PERCENT]) * 20
    assert tries(trials, batches) == list(range(len(batches)))
    assert not trials.is_suspended


def test_pauses_of_compression_trials_double_up_to_a_limit() -> None:
    tried = tries(rested(), [BAD] * 10_000)
    gaps = [later - earlier - 1 for earlier, later in zip([-1, *tried], tried, strict=False)]
    assert gaps[0] == MIN_SKIPPED_BATCHES
    assert all(later == min(2 * earlier, MAX_SKIPPED_BATCHES) for earlier, later in pairwise(gaps))
    assert gaps[-1] == MAX_SKIPPED_BATCHES


def test_one_compressible_batch_ends_the_pause() -> None:
    trials = rested()
    assert tries(trials, [GOOD] * (MIN_SKIPPED_BATCHES + 10)) == list(
        range(MIN_SKIPPED_BATCHES, MIN_SKIPPED_BATCHES + 10)
    )
    assert tries(trials, [BAD] * (MAX_FAILED_TRIALS + MIN_SKIPPED_BATCHES + 1)) == [
        *range(MAX_FAILED_TRIALS),
        MAX_FAILED_TRIALS + MIN_SKIPPED_BATCHES,
    ]


def test_a_quiet_topic_is_tried_again_after_the_pause() -> None:
    trials = rested()
    assert not trials.count_batch(MAX_SKIP_S - 1)
    assert tries(trials, [GOOD, GOOD], MAX_SKIP_S) == [0, 1]


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 120), st.floats(0, 2 * MAX_SKIP_S)), max_size=300))
def test_no_pause_exceeds_its_limits(batches: list[tuple[int, float]]) -> None:
    trials, now, skipped, since = CompressionTrials(), 0.0, 0, 0.0
    for size, later in batches:
        now += later
        if trials.count_batch(now):
            trials.record(100, size, now)
            skipped, since = 0, now
        else:
            skipped += 1
            assert skipped <= MAX_SKIPPED_BATCHES
            assert now - since < MAX_SKIP_S
