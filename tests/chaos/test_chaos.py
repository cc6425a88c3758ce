"""Chaos on a real three-broker Kafka: see `support.chaos`; `python -m chaos` runs it for longer, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from chaos.runs import Run, run_chaos
from support.chaos import AT_LEAST_ONCE, HARDLY_ANY
from support.chaos_sites import CALM, Harm, Real

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process

RATE: Final = 400.0


# Seeds with different variations: combined, per topic and no batches; snappy, gzip and zstd; large and small datagrams.
@pytest.mark.parametrize(
    ("seed", "seconds"), [(12, 30), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in (12, 27, 29))]
)
def test_nothing_is_lost_doubled_or_reordered(tmp_path: Path, kafka_3: KafkaCluster, seed: int, seconds: int) -> None:
    run_chaos(Run(seed, seconds, RATE), Real(kafka_3), tmp_path)


@pytest.mark.soak
def test_each_partition_keeps_the_order_while_topics_grow(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    """No partition replaces another, so messages with different keys keep their order too."""
    report = run_chaos(Run(55, 40, RATE, CALM), Real(kafka_3), tmp_path)
    assert any(" partitions for " in deed for deed in report.outcome.deeds)


def test_with_acks_of_the_leader_alone_nothing_is_lost_while_brokers_live(
    tmp_path: Path, kafka_3: KafkaCluster
) -> None:
    """Repetitions are counted."""
    settings = {"kafka.required_acks": 1}
    run_chaos(Run(9, 15, RATE, [Harm.PROCESS], AT_LEAST_ONCE, settings=settings), Real(kafka_3), tmp_path)


def test_without_acks_the_books_balance_and_nothing_is_made_up(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    settings = {"kafka.required_acks": 0}
    run_chaos(Run(5, 15, RATE, [Harm.PROCESS], HARDLY_ANY, settings=settings), Real(kafka_3), tmp_path)
