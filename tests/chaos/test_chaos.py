"""Chaos on a real three-broker Kafka: see `support.chaos`; `python -m chaos` runs it for longer, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from chaos.runs import Run, run_chaos
from support.chaos import AT_LEAST_ONCE, NO_GUARANTEES
from support.chaos_sites import LEADER_PRESERVING, FaultKind, Real

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

RATE: Final = 400.0


# Seeds with different variations: combined, per topic and no batches; snappy, gzip and zstd; large and small datagrams.
@pytest.mark.parametrize(
    ("seed", "seconds"), [(12, 20), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in (12, 27, 29))]
)
def test_chaos_leaves_no_message_lost_duplicated_or_reordered(
    tmp_path: Path, kafka_3: KafkaCluster, seed: int, seconds: int
) -> None:
    run_chaos(Run(seed, seconds, RATE), Real(kafka_3), tmp_path)


@pytest.mark.soak
def test_each_partition_keeps_the_order_while_topics_grow(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    """No partition replaces another, so messages with different keys keep their order too."""
    report = run_chaos(Run(55, 40, RATE, LEADER_PRESERVING), Real(kafka_3), tmp_path)
    assert any(" partitions for " in fault for fault in report.outcome.faults)


@pytest.mark.soak
def test_acks_1_loses_no_message_while_brokers_stay_alive(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    """Repetitions are counted."""
    settings = {"kafka.required_acks": 1}
    run_chaos(Run(9, 15, RATE, [FaultKind.PROCESS], AT_LEAST_ONCE, settings=settings), Real(kafka_3), tmp_path)


@pytest.mark.soak
def test_acks_0_keeps_the_books_balanced_and_invents_no_message(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    settings = {"kafka.required_acks": 0}
    run_chaos(Run(5, 15, RATE, [FaultKind.PROCESS], NO_GUARANTEES, settings=settings), Real(kafka_3), tmp_path)
