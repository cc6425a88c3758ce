"""The usable part of a slab in an outage, and the cost of a few stuck messages: small versions of the benchmark."""

from __future__ import annotations

import pytest

from bench.usable_share import CASES, Case, Share, measure

CHUNKS = 1024
BY_NAME = {case.name: case for case in CASES}

GOOD = (
    "20 topics, one stuck",
    "100 topics, one partition of one stuck",
    "20 topics, PartitionKey, one broker of 3 stuck",
    "20 topics, AnyPartition, one broker of 3 stuck",
)


def shares(case: Case) -> Share:
    share = measure(case, CHUNKS)
    assert 0 < share.usable < 1
    assert 0 < share.stuck < 0.5
    return share


@pytest.mark.parametrize("name", GOOD)
def test_stuck_messages_pin_little_more_than_their_own_chunks(name: str) -> None:
    share = shares(BY_NAME[name])
    assert share.usable > 0.6
    assert share.pinned < share.stuck + 0.06
    assert share.usable_again > 0.9 * share.usable


def test_the_simulation_is_deterministic() -> None:
    case = Case("small", BY_NAME[GOOD[0]].is_stuck, topics=5)
    assert measure(case, 128) == measure(case, 128)


@pytest.mark.soak
def test_a_trickle_uses_the_slab() -> None:
    case = Case("trickle", BY_NAME[GOOD[0]].is_stuck, topics=200, rate=100, keyed=0.0, largest=200)
    assert shares(case).usable > 0.3


SLOW = (
    BY_NAME["the same, 2,000 messages/s"],
    BY_NAME["the same, batching `none`"],
    BY_NAME["the same, batching `per_topic`"],
)


@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_one_stuck_partition_of_twelve_does_not_pin_other_runs(case: Case) -> None:
    share = shares(case)
    assert share.pinned < 2 * share.stuck
    assert share.usable_again > 0.9 * share.usable


def test_a_stuck_topic_without_a_number_pins_its_shared_lane() -> None:
    share = shares(BY_NAME["unknown ones, up to 200 bytes"])
    assert share.pinned < 0.15  # 16 lanes
    assert share.usable_again > 0.8 * share.usable


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_quarter_of_the_slab_is_usable_under_any_traffic(case: Case) -> None:
    assert shares(case).usable > 0.25
