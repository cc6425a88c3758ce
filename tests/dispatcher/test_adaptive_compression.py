"""Trials: a topic that does not get smaller is left alone, and tried again now and then."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.dispatcher.compression import (
    BAD_IN_A_ROW,
    FIRST_REST,
    LONGEST_REST,
    REST_S,
    WORTH_PERCENT,
    CompressionTrials,
)
from support.examples import examples

GOOD, BAD = 10, 100


def tries(trials: CompressionTrials, batches: list[int], now: float = 0.0) -> list[int]:
    """The places of those batches (by their size when compressed, of 100) that were tried."""
    tried = []
    for at, size in enumerate(batches):
        if trials.is_due(now):
            tried.append(at)
            trials.tried(100, size, now)
    return tried


def rested() -> CompressionTrials:
    trials = CompressionTrials()
    assert tries(trials, [BAD] * BAD_IN_A_ROW) == list(range(BAD_IN_A_ROW))
    assert trials.is_resting
    return trials


def test_compressible_batches_are_always_compressed() -> None:
    trials = CompressionTrials()
    batches = ([BAD] * (BAD_IN_A_ROW - 1) + [WORTH_PERCENT]) * 20
    assert tries(trials, batches) == list(range(len(batches)))
    assert not trials.is_resting


def test_pauses_of_compression_trials_double_up_to_a_limit() -> None:
    tried = tries(rested(), [BAD] * 10_000)
    gaps = [later - earlier - 1 for earlier, later in zip([-1, *tried], tried, strict=False)]
    assert gaps[0] == FIRST_REST
    assert all(later == min(2 * earlier, LONGEST_REST) for earlier, later in pairwise(gaps))
    assert gaps[-1] == LONGEST_REST


def test_one_compressible_batch_ends_the_pause() -> None:
    trials = rested()
    assert tries(trials, [GOOD] * (FIRST_REST + 10)) == list(range(FIRST_REST, FIRST_REST + 10))
    assert tries(trials, [BAD] * (BAD_IN_A_ROW + FIRST_REST + 1)) == [*range(BAD_IN_A_ROW), BAD_IN_A_ROW + FIRST_REST]


def test_a_quiet_topic_is_tried_again_after_the_pause() -> None:
    trials = rested()
    assert not trials.is_due(REST_S - 1)
    assert tries(trials, [GOOD, GOOD], REST_S) == [0, 1]


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 120), st.floats(0, 2 * REST_S)), max_size=300))
def test_no_pause_exceeds_its_limits(batches: list[tuple[int, float]]) -> None:
    trials, now, skipped, since = CompressionTrials(), 0.0, 0, 0.0
    for size, later in batches:
        now += later
        if trials.is_due(now):
            trials.tried(100, size, now)
            skipped, since = 0, now
        else:
            skipped += 1
            assert skipped <= LONGEST_REST
            assert now - since < REST_S
