"""Chaos on embedded brokers, which inject all their faults while processes and brokers are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from chaos.runs import Run, run_chaos
from support.chaos import AT_LEAST_ONCE
from support.chaos_sites import LEADER_PRESERVING, Embedded, FaultKind
from support.read_back import broker_fixture

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

BROKERS: Final = 3
WITHIN_A_LIFE: Final = frozenset(FaultKind) - {FaultKind.RESTART, FaultKind.POWER}
"""Kinds of faults that seldom restart the whole daemon."""
broker = broker_fixture(brokers=BROKERS, strict=True)


def test_chaos_leaves_no_message_lost_duplicated_or_reordered(tmp_path: Path, broker: DevBroker) -> None:
    run_chaos(Run(129, 12, 120), Embedded(broker, BROKERS), tmp_path)


def test_each_partition_keeps_the_order_while_topics_grow(tmp_path: Path, broker: DevBroker) -> None:
    """No partition replaces another, so messages with different keys keep their order too."""
    report = run_chaos(Run(156, 12, 120, LEADER_PRESERVING), Embedded(broker, BROKERS), tmp_path)
    assert any(" partitions for " in fault for fault in report.outcome.faults)


def test_chaos_loses_nothing_with_pure_kernels(
    tmp_path: Path, broker: DevBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install without a compiler has pure kernels; the other runs use compiled ones if they exist."""
    monkeypatch.setenv("BRUCE_KERNELS", "pure")
    run_chaos(Run(131, 8, 80, WITHIN_A_LIFE), Embedded(broker, BROKERS), tmp_path)
    assert "It uses pure Python kernels" in (tmp_path / "log").read_text()


@pytest.mark.soak
def test_duplicates_from_sequence_errors_are_counted_by_topic(tmp_path: Path, broker: DevBroker) -> None:
    """The counts are exact by topic as well, because no process is killed."""
    fault_kinds = (FaultKind.BROKER, FaultKind.LEADER, FaultKind.ANSWER)
    report = run_chaos(Run(40, 15, 200, fault_kinds, AT_LEAST_ONCE), Embedded(broker, BROKERS, epochs=True), tmp_path)
    possible = report.outcome.possible_by_topic
    assert all(count <= possible[topic] for topic, count in report.account.repeated.items())
