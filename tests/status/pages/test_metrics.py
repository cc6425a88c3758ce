"""`/metrics`, read by the parser of Prometheus's own client library."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import recount
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.pages.exposition import (
    OTHER,
    Family,
    Sample,
    choose_format,
    histogram,
    limit_series,
    render_families,
)
from bruce_mp.telemetry.broker_status import CONNECTED, BrokerStatus
from bruce_mp.telemetry.compression import CompressionEvent
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS
from bruce_mp.telemetry.traffic import TrafficEvent
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
DOCS: Final = Path(__file__).parents[3] / "docs"
TOPIC_TOTALS: Final = ("messages_received", "messages_delivered", "messages_discarded", "delivered_bytes")
PROMETHEUS_2: Final = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(daemon: OfflineStatusPages) -> str:
    response = daemon.client.get("/metrics")
    assert response.status_code == 200
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return response.get_data(as_text=True)


def parsed(text: str) -> Found:
    found: Found = {}
    for family in text_string_to_metric_families(text):
        assert family.type in {"counter", "gauge", "histogram"}, family.name
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "a series stands there twice"
            found[key] = sample.value
    return found


def value(found: Found, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def names(text: str) -> set[str]:
    """Return every name that a query may use."""
    found = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge)$", text, re.MULTILINE))
    for name in re.findall(r"^# TYPE (\w+) histogram$", text, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return found


# --- the page ---------------------------------------------------------------------------------------------------------


def test_metrics_include_the_books(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 5)
    daemon.filled.receive(b"clicks", 2, RunState.DELIVERED)
    row = ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER)
    row.add(Counter.MsgDelivered, 2)
    recount(daemon.slab)
    found = parsed(read(daemon))
    assert value(found, "bruce_messages_received_total") == 7
    assert value(found, "bruce_messages_delivered_total") == 2
    assert value(found, "bruce_messages_held", stage="router") == 5
    assert value(found, "bruce_messages_discarded_total", reason="BAD_TOPIC") == 0
    assert value(found, "bruce_books_balanced") == 1
    row.add(discarded(DiscardReason.BUG))
    found = parsed(read(daemon))
    assert value(found, "bruce_messages_discarded_total", reason="BUG") == 1
    assert value(found, "bruce_books_balanced") == 0


def test_the_time_to_the_ack_is_a_histogram(daemon: OfflineStatusPages) -> None:
    row = ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER)
    for messages, delay_ms in ((3, 4), (2, 30), (1, 10**6)):
        row.add(Counter.AckDelayFirst + bisect_left(BOUNDS_MS, delay_ms), messages)
        row.add(Counter.AckDelayMs, messages * delay_ms)
    found = parsed(read(daemon))
    bounds = ("0.001", "0.005", "0.05", "300.0", "+Inf")
    assert [value(found, "bruce_ack_delay_seconds_bucket", le=bound) for bound in bounds] == [0, 3, 5, 5, 6]
    assert value(found, "bruce_ack_delay_seconds_count") == 6
    assert value(found, "bruce_ack_delay_seconds_sum") == pytest.approx(1000.072)


def test_topics_have_series_and_an_age(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 5)
    daemon.filled.receive(b'un"known\n', 2)
    daemon.steady_ms += 1500
    daemon.now_ms -= 3_600_000  # an administrator sets the clock back
    found = parsed(read(daemon))
    assert value(found, "bruce_topic_messages_held", topic="news") == 5
    assert value(found, "bruce_topic_messages_held", topic=r'un"known\x0a') == 2
    assert value(found, "bruce_topic_messages_held", topic=OTHER) == 0
    assert value(found, "bruce_topic_oldest_held_seconds", topic="news") == 1.5
    assert value(found, "bruce_oldest_held_seconds") == 1.5
    assert value(found, "bruce_slab_in_use_ratio") > 0


def test_the_totals_of_a_topic_balance_with_its_held_messages(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 5)
    daemon.filled.receive(b"invented", 2)
    daemon.histories.totals.record(
        [
            TrafficEvent(b"news", 3, 700, {0: 3}, 0, ""),
            DiscardEvent(DiscardReason.RATE_LIMIT, b"news", 4, 0, 0),
            DiscardEvent(DiscardReason.MALFORMED, b"", 6, 0, 0),
        ],
        daemon.steady_ms,
    )
    found = parsed(read(daemon))
    totals = {
        topic: [value(found, f"bruce_topic_{name}_total", topic=topic) for name in TOPIC_TOTALS]
        for topic in ("news", OTHER)
    }
    assert totals == {"news": [12, 3, 4, 700], OTHER: [8, 0, 6, 0]}


def test_excess_topics_share_one_series(daemon: OfflineStatusPages) -> None:
    daemon.histories.totals.apply_limit(3)
    for number in range(8):
        daemon.filled.receive(b"t%d" % number, 1 if number else 9)
    found = parsed(read(daemon))
    series = [labels for name, labels in found if name == "bruce_topic_messages_held"]
    assert len(series) == 4
    assert value(found, "bruce_topic_messages_held", topic="t0") == 9
    assert value(found, "bruce_topic_messages_held", topic=OTHER) == 5


def test_a_topic_named_as_the_rest_makes_no_second_series() -> None:
    assert limit_series([(OTHER, 2), ("a", 1)], 1, sum) == [
        Sample(1, {"topic": "a"}),
        Sample(2, {"topic": OTHER}),
    ]
    assert limit_series([("a", 1), ("b", 2), ("c", 3)], 1, max)[-1] == Sample(3, {"topic": OTHER})


def test_metrics_cover_brokers_processes_and_codecs(daemon: OfflineStatusPages) -> None:
    daemon.begin(lay.ROW_ROUTER, silent_ms=2000)
    daemon.broker_status.record([BrokerStatus(0, 7, "kafka7", 9092, CONNECTED, NOW_MS, 3, "", 0, True)], NOW_MS)
    daemon.compression.record(
        [CompressionEvent(topic, "lz4", tried=1, plain_bytes=100, packed_bytes=40) for topic in (b"a", b"b")]
    )
    ProcessRow(daemon.slab, lay.ROW_FIRST_DISPATCHER).add(Counter.AckErrorFirst + 1 + 6, 4)
    found = parsed(read(daemon))
    assert value(found, "bruce_broker_requests_in_flight", broker="7") == 3
    assert value(found, "bruce_broker_connected", broker="7") == 1
    assert value(found, "bruce_process_up", process="router") == 1
    assert value(found, "bruce_process_silent_seconds", process="router") == 2
    assert value(found, "bruce_compression_in_bytes_total", codec="lz4") == 200
    assert value(found, "bruce_compression_out_bytes_total", codec="lz4") == 80
    assert value(found, "bruce_kafka_answers_total", error="NOT_LEADER_OR_FOLLOWER") == 4


def test_names_follow_the_conventions(daemon: OfflineStatusPages) -> None:
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", read(daemon), re.MULTILINE))
    assert len(types) > 30
    for name, kind in types.items():
        assert re.fullmatch(r"bruce(_[a-z]+)+", name), name
        assert name.endswith("_total") == (kind == "counter"), name


def test_label_values_from_clients_cannot_forge_a_sample() -> None:
    family = Family("a_total", "counter", 'Says "a\\b".\n', [Sample(1, {"topic": 'x"} 1\na_total 2\\'})])
    (read_back,) = text_string_to_metric_families(render_families([family]))
    assert [(sample.value, sample.labels) for sample in read_back.samples] == [(1, {"topic": 'x"} 1\na_total 2\\'})]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "prometheus"),
        ("*/*", "prometheus"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "prometheus"),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "prometheus"),
        (PROMETHEUS_2, "openmetrics"),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.2", "openmetrics"),
        ("application/openmetrics-text", "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "prometheus"),
        ("application/openmetrics-text;q=0", "prometheus"),
        ("application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.9", "prometheus"),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, form: str) -> None:
    assert choose_format(parse_accept_header(accept, MIMEAccept)) == form


def test_openmetrics_has_the_same_samples(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 5)
    response = daemon.client.get("/metrics", headers={"Accept": PROMETHEUS_2})
    assert response.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert response.headers["Vary"] == "Accept"
    text = response.get_data(as_text=True)
    assert text.endswith("\n# EOF\n")
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in openmetrics_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    assert found.keys() == parsed(read(daemon)).keys()
    assert value(found, "bruce_topic_messages_received_total", topic="news") == 5


def test_openmetrics_names_a_counter_without_its_suffix() -> None:
    families = [
        Family("a_total", "counter", 'Says "a".', [Sample(1)]),
        histogram("b_seconds", "Time.", [0.5], [1, 2], 3.5),
    ]
    assert render_families(families, "openmetrics").splitlines() == [
        r"# HELP a Says \"a\".",
        "# TYPE a counter",
        "a_total 1",
        "# HELP b_seconds Time.",
        "# TYPE b_seconds histogram",
        'b_seconds_bucket{le="0.5"} 1',
        'b_seconds_bucket{le="+Inf"} 3',
        "b_seconds_sum 3.5",
        "b_seconds_count 3",
        "# EOF",
    ]


# --- dashboard and alert rules ----------------------------------------------------------------------------------------


@cache
def expressions() -> dict[str, str]:
    """Yield every query of the dashboard and of the alert rules, with its place."""
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana" / "bruce.json").read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    return found | {f"alert {name}": expression for name, expression in alerts().items()}


def alerts() -> dict[str, str]:
    text = (DEPLOY / "prometheus" / "bruce.rules.yml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)\n", text))


def test_every_metric_that_the_dashboard_and_the_alerts_name_exists(daemon: OfflineStatusPages) -> None:
    known = names(read(daemon))
    used = {where: set(re.findall(r"\bbruce_\w+", expression)) for where, expression in expressions().items()}
    assert len(used) > 15
    assert {where: found - known for where, found in used.items() if found - known} == {}
    assert [where for where, found in used.items() if not found and "up{" not in expressions()[where]] == []


def test_every_alert_and_every_metric_is_explained_in_the_documents(daemon: OfflineStatusPages) -> None:
    guide = (DOCS / "operating.md").read_text()
    assert len(alerts()) >= 8
    assert [name for name in alerts() if f"### {name}\n" not in guide] == []
    page = (DOCS / "metrics.md").read_text()
    described = dict(re.findall(r"^\| `(bruce_\w+)`.*?\| (\w+) \|", page, re.MULTILINE))
    assert described == dict(re.findall(r"^# TYPE (\w+) (\w+)$", read(daemon), re.MULTILINE))
