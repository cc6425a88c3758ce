"""A short sitting of the applications, and their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.applications.__main__ import main
from bench.applications.results import Applications, Cost, Load, figures_of, render

if TYPE_CHECKING:
    from pathlib import Path

LOADS = [Load(100, 0, 1000), Load(1024, 20_000, 1000)]


def test_figures_are_medians_by_sender_and_load() -> None:
    costs = [Cost("C stream", "100B", own, 0.5, 1e6) for own in (1.0, 2.0, 9.0)]
    figure = figures_of(costs)["C stream"]["100B"]
    assert (figure.application_us, figure.daemon_us, figure.total_us) == (2.0, 0.5, 2.5)
    assert (figure.lowest_us, figure.highest_us) == (1.5, 9.5)


def test_the_table_shows_parts_and_reasons() -> None:
    costs = [Cost("C stream", "100B", 0.25, 0.5, 1e6), Cost("librdkafka", "1KB-20k/s", 1.0, 0.0, 2e4)]
    shown = render(Applications({}, figures_of(costs), {"Go stream": "there is no go"}, {}), LOADS)
    assert "0.25+0.50=0.75" in shown
    assert "1.00" in shown
    assert "Go stream, not measured: there is no go" in shown


@pytest.mark.process
@pytest.mark.quiet
def test_applications_with_and_without_the_daemon_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    senders = ("Python datagrams", "Python stream", "C datagrams", "C stream", "confluent-kafka")
    chosen = [word for name in senders for word in ("--sender", name)]
    loads = ["--load", "100B", "--load", "1KB-20k/s"]
    assert main([*chosen, *loads, "--repeat", "1", "--messages", "2000", "--json", str(tmp_path / "figures")]) == 0
    shown = capsys.readouterr().out
    assert "NO FIGURE" not in shown
    assert all(name in shown for name in senders)
    assert '"application_us"' in (tmp_path / "figures").read_text()
