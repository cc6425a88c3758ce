"""The counters by topic on `/metrics`, in a running daemon: delivered, discarded and held messages."""

from __future__ import annotations

import os
import signal
import urllib.request
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

SETTINGS: Final = {
    "input.unix_datagram.when_full": "block",
    "rate_limit.configs.hundred.interval_ms": 24 * 3600 * 1000,
    "rate_limit.configs.hundred.max_count": 100,
    "rate_limit.topics.noisy": "hundred",
}
TEN_BYTES: Final = b"0123456789"
Totals = dict[str, dict[str, float]]


def totals_of(daemon: Daemon) -> Totals:
    """Scrape as Prometheus does; return the counters of each topic."""
    scrape = urllib.request.Request(daemon.url("/metrics"), headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(scrape, timeout=10) as answer:
        text = answer.read().decode()
    found: Totals = {}
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        if family.name.startswith("bruce_topic_") and family.type == "counter":
            for sample in family.samples:
                name = sample.name.removeprefix("bruce_topic_").removesuffix("_total")
                found.setdefault(sample.labels["topic"], {})[name.removeprefix("messages_")] = sample.value
    return found


def test_topics_count_what_is_received_delivered_discarded_and_held(tmp_path: Path) -> None:
    with DevBroker(topics={"noisy": 2, "quiet": 2}) as broker, Daemon(tmp_path, broker.bootstrap, SETTINGS) as daemon:
        daemon.send("noisy", *[TEN_BYTES] * 300)
        daemon.send("quiet", *[TEN_BYTES] * 50)
        daemon.wait_settled(350)
        noisy = {"received": 300, "delivered": 100, "discarded": 200, "delivered_bytes": 1000}
        other = {"received": 0, "delivered": 0, "discarded": 0, "delivered_bytes": 0}
        quiet = {"received": 50, "delivered": 50, "discarded": 0, "delivered_bytes": 500}
        settled = {"noisy": noisy, "quiet": quiet, "(other)": other}
        daemon.wait_for(lambda: totals_of(daemon) == settled, f"the counters to be {settled}", 10)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            daemon.send("quiet", *[TEN_BYTES] * 40)
            waiting = {**settled, "quiet": {**quiet, "received": 90}}
            daemon.wait_for(lambda: totals_of(daemon) == waiting, f"the counters to be {waiting}", 10)
            books = daemon.books()
            assert (books.received, books.delivered, sum(books.discarded.values())) == (390, 150, 200)
            assert sum(books.held.values()) == 40
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        daemon.wait_settled(390)
        delivered = {**waiting, "quiet": {**quiet, "received": 90, "delivered": 90, "delivered_bytes": 900}}
        daemon.wait_for(lambda: totals_of(daemon) == delivered, f"the counters to be {delivered}", 10)
