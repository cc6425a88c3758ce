"""The usable part of a slab in an outage, and the cost of a few stuck messages: small versions of the benchmark."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from bench.usable_share import CASES, Case, Share, measure

CHUNKS: Final = 640
BY_NAME: Final = {case.name: case for case in CASES}


class Bounds(NamedTuple):
    """Least usable share, most pinned share as a multiple of the stuck share plus a rest, and least share afterwards.

    `usable_again` is a multiple of the share that was usable before.
    """

    usable: float = 0.25
    stuck_times: float = 0.0
    rest: float = 1.0
    usable_again: float = 0.0


FEW_CHUNKS: Final = Bounds(usable=0.6, stuck_times=1, rest=0.06, usable_again=0.9)
OWN_RUNS: Final = Bounds(stuck_times=2, rest=0.0, usable_again=0.9)
BOUNDS: Final = {
    "20 topics, one stuck": FEW_CHUNKS,
    "100 topics, one partition of one stuck": FEW_CHUNKS,
    "20 topics, PartitionKey, one broker of 3 stuck": FEW_CHUNKS,
    "20 topics, AnyPartition, one broker of 3 stuck": FEW_CHUNKS,
    "the same, 2,000 messages/s": OWN_RUNS,
    "the same, batching `none`": OWN_RUNS,
    "the same, batching `per_topic`": OWN_RUNS,
    "100 topics without metadata, up to 200 bytes, one stuck": Bounds(rest=0.15, usable_again=0.8),  # 16 shared lanes
}


def shares(case: Case, chunks: int = CHUNKS) -> Share:
    share = measure(case, chunks)
    assert 0 < share.usable < 1
    assert 0 < share.stuck < 0.5
    return share


def test_the_bounds_name_cases() -> None:
    assert BOUNDS.keys() <= BY_NAME.keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in BOUNDS else pytest.mark.soak) for case in CASES],
)
def test_the_slab_is_usable_and_stuck_messages_pin_few_chunks_under_any_traffic(case: Case) -> None:
    share, bounds = shares(case), BOUNDS.get(case.name, Bounds())
    assert share.usable > bounds.usable
    assert share.pinned < bounds.stuck_times * share.stuck + bounds.rest
    assert share.usable_again > bounds.usable_again * share.usable


def test_the_simulation_is_deterministic() -> None:
    case = Case("small", BY_NAME["20 topics, one stuck"].is_stuck, topics=5)
    assert measure(case, 128) == measure(case, 128)


@pytest.mark.soak
def test_a_trickle_uses_the_slab() -> None:
    case = Case("trickle", BY_NAME["20 topics, one stuck"].is_stuck, topics=200, rate=100, keyed=0.0, largest=200)
    assert shares(case, 1024).usable > 0.3
