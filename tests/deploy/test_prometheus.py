"""A real Prometheus scrapes a daemon, evaluates the alert rules, and answers the queries of the dashboard."""

from __future__ import annotations

import json
import math
import re
import shutil
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support import processes
from support.daemon import Daemon
from support.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RULES: Final = DEPLOY / "prometheus" / "bruce.rules.yml"
SETTINGS: Final = {"compression.configs.quick.type": "lz4", "compression.default": "quick"}
NOT_LEADER: Final = 6
VALUE: Final = b"0123456789" * 100
PATIENCE_S: Final = 20.0
CONFIG: Final = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: bruce
    static_configs: [{{targets: ["{target}"]}}]
"""
RATE_INTERVAL: Final = "10m"
"""Value of the dashboard's interval, longer than the test."""


class Prometheus:
    """The HTTP API of a Prometheus on loopback."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **arguments: str) -> Any:
        """Return the data of an answer; one with an error or a warning fails the test."""
        with urllib.request.urlopen(f"{self._url}/{path}?{urlencode(arguments)}", timeout=10) as response:
            answer = json.load(response)
        assert answer.keys() == {"status", "data"}, answer
        assert answer["status"] == "success", answer
        return answer["data"]

    def is_ready(self) -> bool:
        try:
            return bool(self.get("targets")["activeTargets"])
        except URLError:
            return False

    def values(self, query: str) -> list[float]:
        """Return the values of a query, of each series the last."""
        return [float(series["value"][1]) for series in self.get("query", query=query)["result"]]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> dict[str, str]:
        """Return the states of the alerts by name."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self.get("alerts")["alerts"]}


@contextmanager
def running_prometheus(directory: Path, daemon: Daemon) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes the daemon, and check at the end that its log has no warning."""
    program = shutil.which("prometheus")
    assert program is not None
    directory.mkdir()
    target = urlsplit(daemon.url("/metrics")).netloc
    (directory / "prometheus.yml").write_text(CONFIG.format(rules=RULES, target=target))
    port = ReservedPort()
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port.number}",
    ]
    log = directory / "log"
    with log.open("wb") as output:
        process = processes.spawn(command, output=output)
    try:
        prometheus = Prometheus(port.number)
        processes.wait_until(prometheus.is_ready, "Prometheus to answer", PATIENCE_S)
        yield prometheus
        assert re.findall(r".*level=(?:warn|error).*", log.read_text(), re.IGNORECASE) == []
    finally:
        process.terminate()
        process.wait(processes.time_limit(PATIENCE_S))
        port.release()


def dashboard_queries(instance: str) -> dict[str, str]:
    """Return each query of the dashboard by its panel and letter, with values for its variables."""
    dashboard = json.loads((DEPLOY / "grafana" / "bruce.json").read_text())
    queries = {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$instance", instance)
        .replace("$__rate_interval", RATE_INTERVAL)
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    assert [query for query in queries.values() if "$" in query] == []
    return queries


def queries_without_numbers(prometheus: Prometheus) -> list[str]:
    """Return the queries of the dashboard that have no series, or one without a number."""
    (instance,) = prometheus.get("label/instance/values", **{"match[]": "bruce_live"})
    answers = {place: prometheus.values(query) for place, query in dashboard_queries(instance).items()}
    return [place for place, values in answers.items() if not values or any(map(math.isnan, values))]


def firing(prometheus: Prometheus) -> set[str]:
    return {name for name, state in prometheus.alerts().items() if state == "firing"}


def wait_scraped(daemon: Daemon, prometheus: Prometheus, query: str, value: float) -> None:
    daemon.wait_for(lambda: prometheus.values(query) == [value], f"{query} to be {value:g}", PATIENCE_S)


def wait_grown(daemon: Daemon, prometheus: Prometheus, query: str, before: float) -> float:
    """Wait until a scraped value exceeds an earlier one, and return it."""
    daemon.wait_for(
        lambda: any(value > before for value in prometheus.values(query)), f"{query} to exceed {before:g}", PATIENCE_S
    )
    [value] = prometheus.values(query)
    return value


def assert_healthy(prometheus: Prometheus) -> None:
    """Assert that the scrape and all rules work."""
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    names = re.findall(r"- alert: (\w+)", RULES.read_text())
    states = [(rule["name"], rule["health"], rule.get("lastError")) for rule in prometheus.rules()]
    assert states == [(name, "ok", None) for name in names]


@pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed; Debian has it in the package prometheus",
)
def test_prometheus_reads_the_metrics_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    with DevBroker(topics={"clicks": 1}) as broker, Daemon(tmp_path, broker.bootstrap, SETTINGS) as daemon:
        with running_prometheus(tmp_path / "prometheus", daemon) as prometheus:
            wait_scraped(daemon, prometheus, "bruce_ready", 1)
            daemon.wait_for(
                lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, "an evaluation", PATIENCE_S
            )
            assert prometheus.alerts() == {}

            broker.inject(Fault(action=FaultAction.ERROR, code=NOT_LEADER, topic="clicks", times=1))
            compressed = 0.0
            for delivered in (100, 200):  # a series that begins with the first messages has a rate from the second on
                daemon.send("clicks", *[VALUE] * 100)
                wait_scraped(daemon, prometheus, "bruce_messages_delivered_total", delivered)
                compressed = wait_grown(daemon, prometheus, "sum(bruce_compression_in_bytes_total)", compressed)
            daemon.send_encoded(b"no message")
            wait_scraped(daemon, prometheus, "sum(bruce_messages_discarded_total)", 1)
            assert queries_without_numbers(prometheus) == []
            daemon.wait_for(lambda: "BruceClientMistakes" in firing(prometheus), "the alert of a mistake", PATIENCE_S)

            broker.broker_down(1)
            daemon.send("clicks", VALUE)
            daemon.wait_for(lambda: prometheus.alerts().get("BruceNotReady") == "pending", "an outage", PATIENCE_S)
            assert firing(prometheus) == {"BruceClientMistakes"}
            assert_healthy(prometheus)
        broker.broker_up(1)
        daemon.wait_settled(202)  # two times 100, the malformed one, and the one of the outage
