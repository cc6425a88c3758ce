"""The monitoring scripts of Dory and Bruce watch a daemon that works, discards, has no broker, dies and recovers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.daemon import Daemon
from support.legacy_monitor import CRITICAL, OK, SCRIPTS, CounterMonitor, DiscardMonitor
from support.read_back import values_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

HELD: Final = 150
"""More messages than the counters scripts tolerate."""


class OldMonitors:
    """The four scripts, with the reports that they keep."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._counters = [CounterMonitor(script) for script in SCRIPTS.values()]
        self._discards = [DiscardMonitor(script) for script in SCRIPTS.values()]

    def check(self) -> tuple[set[int], set[int]]:
        """Return the exit codes of the counters scripts and of the discards scripts."""
        time.sleep(1)  # the scripts tell their reports apart by the second
        counters = {each.check(lambda: self._daemon.get("/counters/json")) for each in self._counters}
        return counters, {each.check(lambda: self._daemon.get("/discards/json")) for each in self._discards}

    def check_with_metadata(self) -> tuple[set[int], set[int]]:
        """Check after a successful metadata fetch, which the scripts expect in each interval."""
        fetches = self._daemon.counters()["GetMetadataSuccess"]
        self._daemon.refresh_metadata()
        self._daemon.wait_for(lambda: self._daemon.counters()["GetMetadataSuccess"] > fetches, "metadata", 20)
        return self.check()


def test_the_old_monitoring_scripts_judge_five_states_correctly(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(HELD + 10)]
    with DevBroker(topics={"news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        monitors = OldMonitors(daemon)
        daemon.send("news", *values[:5])
        daemon.wait_settled(5)
        assert [monitors.check_with_metadata() for _ in range(2)] == [({OK}, {OK})] * 2  # works

        daemon.send("unknown", b"value")
        daemon.send_encoded(b"malformed")
        daemon.wait_settled(7)
        assert monitors.check_with_metadata() == ({OK}, {CRITICAL})  # discards

        broker.broker_down(1)
        daemon.send("news", *values[5:])
        daemon.wait_for(lambda: daemon.counters()["GetMetadataFail"] > 0, "a failed fetch", 30)
        assert daemon.counters()["InitialGetMetadataFail"] == 0
        assert monitors.check() == ({CRITICAL}, {CRITICAL})  # has no brokers

        daemon.kill_all()
        assert monitors.check() == ({CRITICAL}, {CRITICAL})  # is dead

        broker.broker_up(1)
        daemon.start()
        daemon.wait_settled(len(values) + 2)
        assert monitors.check_with_metadata() == ({CRITICAL}, {OK})  # the new pid: counted from the slab's beginning
        assert monitors.check_with_metadata() == ({OK}, {OK})  # recovered
        assert values_in(broker, "news") == values
