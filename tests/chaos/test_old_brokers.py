"""Chaos on Kafka 0.10, which stores repeated batches twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.old_brokers import V0_10, old_run
from chaos.runs import run_chaos
from support.chaos_sites import FaultKind, Real
from support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.kafka]


@pytest.mark.soak
def test_old_brokers_lose_nothing_and_duplicates_are_counted(tmp_path: Path) -> None:
    with KafkaCluster(V0_10.version, brokers=3, config=V0_10.config) as cluster:
        run_chaos(old_run(7, seconds=60, rate=300), Real(cluster), tmp_path)
        # Faults of brokers alone: the count of each topic bounds its repetitions.
        quiet = old_run(8, seconds=25, rate=300, fault_kinds=[FaultKind.BROKER])
        (directory := tmp_path / "brokers").mkdir()
        report = run_chaos(quiet, Real(cluster), directory)
    possible = report.outcome.possible_by_topic
    assert all(count <= possible[topic] for topic, count in report.account.repeated.items())
