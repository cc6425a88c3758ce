"""Chaos under Spark with a ledger on a real three-broker Kafka; `python -m chaos.spark` runs it for longer, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from chaos.spark import SparkChaos

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.quiet, pytest.mark.soak]

RATE: Final = 250.0


def test_a_ledger_doubles_and_loses_no_row_while_everything_is_killed(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    report = SparkChaos(4, RATE, kafka_3, tmp_path).run(120)
    assert report.drivers > 1
