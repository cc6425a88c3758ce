"""Short runs of the whole outage benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.outage.drive import Loads, Times, drive
from bench.outage.figures import report_of
from bench.outage.load import Load
from bench.outage.results import Group
from bench.outage.sites import Embedded, RealKafka
from bench.outage.table import render

if TYPE_CHECKING:
    from pathlib import Path

    from bench.outage.results import Report
    from support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.process
LOADS = Loads(Load(rate=300, topics=("outage-short",)), Load(rate=60, topics=("outage-short-direct",)))


def assert_sound(report: Report) -> None:
    """Check a report at any pace of the machine."""
    assert [refusal for refusal in report.refusals if "pace" not in refusal] == []
    assert [span.name for span in report.spans] == ["before", "down", "back", "after"]
    assert report.pauses > 0
    assert report.books.possible_duplicates == 0
    assert report.site in render(report)


@pytest.mark.quiet
def test_embedded_outage_silences_dead_partitions_longer_than_others(tmp_path: Path) -> None:
    with Embedded.open(LOADS.topics) as site:
        observed = drive(site, LOADS, Times(warm_up=0, before=1, down=2, back=1, after=1), tmp_path)
    report = report_of(observed, site.traits, {"brokers": site.traits.name})
    assert_sound(report)
    for group in (Group.DEAD, Group.DIRECT_DEAD):
        assert report.silences[group].longest > 1.5
    assert report.silences[Group.OTHERS].longest < report.silences[Group.DEAD].longest
    assert report.read_back.elsewhere > 0


@pytest.mark.soak
def test_real_brokers_outage_reports_log_append_times(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    site = RealKafka(kafka_3, LOADS.topics)
    observed = drive(site, LOADS, Times(warm_up=0, before=1, down=4, back=1, after=1), tmp_path)
    report = report_of(observed, site.traits, {"brokers": site.traits.name})
    assert_sound(report)
    assert report.spans[0].flows[Group.OTHERS].logged_p50 is not None
