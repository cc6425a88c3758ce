"""Chaos on embedded brokers, which inject all their faults while processes and brokers are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from chaos.runs import Run, run_chaos
from support.chaos import AT_LEAST_ONCE
from support.chaos_sites import CALM, Embedded, Harm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

BROKERS: Final = 3


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(brokers=BROKERS, strict=True) as running:
        yield running


def test_nothing_is_lost_doubled_or_reordered(tmp_path: Path, broker: DevBroker) -> None:
    run_chaos(Run(129, 20, 200), Embedded(broker, BROKERS), tmp_path)


def test_each_partition_keeps_the_order_while_topics_grow(tmp_path: Path, broker: DevBroker) -> None:
    """No partition replaces another, so messages with different keys keep their order too."""
    report = run_chaos(Run(156, 20, 200, CALM), Embedded(broker, BROKERS), tmp_path)
    assert any(" partitions for " in deed for deed in report.outcome.deeds)


def test_the_same_with_pure_kernels(tmp_path: Path, broker: DevBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An install without a compiler has pure kernels; the other runs use compiled ones if they exist."""
    monkeypatch.setenv("BRUCE_KERNELS", "pure")
    run_chaos(Run(131, 10, 100), Embedded(broker, BROKERS), tmp_path)
    assert "It uses pure Python kernels" in (tmp_path / "log").read_text()


def test_what_trouble_with_sequence_numbers_doubles_is_counted(tmp_path: Path, broker: DevBroker) -> None:
    """The counts are exact by topic as well, because no process is killed."""
    harms = (Harm.BROKER, Harm.LEADER, Harm.ANSWER)
    report = run_chaos(Run(40, 15, 200, harms, AT_LEAST_ONCE), Embedded(broker, BROKERS, epochs=True), tmp_path)
    possible = report.outcome.possible_by_topic
    assert all(count <= possible[topic] for topic, count in report.account.repeated.items())
