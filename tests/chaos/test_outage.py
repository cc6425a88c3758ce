"""Short outages; `chaos.outage` also runs them for an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.outage import Outage, run_outage
from support.chaos import MAX_QUEUED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.mark.quiet
def test_a_trickle_loses_nothing_when_the_daemon_is_killed(tmp_path: Path) -> None:
    report = run_outage(Outage(seconds=5, rate=20, kills=1, slab="8m"), tmp_path)
    assert report.discarded == 0
    # A message that the kernel still has goes with the socket; a busy machine lets the input run a quarter second late.
    assert report.lost_with_socket <= report.outage.senders * report.outage.rate / 4
    assert report.held_at_return > 100


def test_a_killed_daemon_with_a_full_slab_resumes_its_delivery(tmp_path: Path) -> None:
    report = run_outage(Outage(seconds=2, rate=0, kills=1, slab="8m", largest=20_000), tmp_path)
    assert report.discarded > 100
    assert report.lost_with_socket <= MAX_QUEUED


def test_full_load_blocks_senders_when_configured(tmp_path: Path) -> None:
    report = run_outage(Outage(seconds=2, rate=0, slab="8m", when_full="block"), tmp_path)
    assert report.discarded == report.lost_with_socket == 0
    assert sum(report.sent.values()) == report.received
