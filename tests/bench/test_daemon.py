"""Measurements begin after all processes of the daemon have started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from bench import daemon as module
from bench.cases import Site
from bench.daemon import LOADING, measured_daemon
from bench.first_message import FirstMessage
from bench.tools import make_tools
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.telemetry.books import Books

pytestmark = pytest.mark.process
BROKERS = 3
stopped: list[psutil.Process] = []


class Stopper(FirstMessage):
    """Has one dispatcher begin late: not before the first message is delivered by another."""

    def run(self) -> None:
        self._wait_for(self._stop_one)
        super().run()

    def _stop_one(self) -> bool:
        titles = self._daemon.pids() if self._daemon.has_process else {}
        late = [pid for name, pid in titles.items() if name.startswith("dispatcher") and name.endswith(LOADING)]
        stopped.extend(psutil.Process(pid) for pid in late[-1:])
        for process in stopped:
            process.suspend()
        return bool(stopped)


class Resuming(Daemon):
    def wait_settled(self, received: int, timeout: float = 60.0) -> Books:
        books = super().wait_settled(received, timeout)
        for process in stopped:
            process.resume()
        return books


def test_measurement_starts_after_every_dispatcher_has_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped.clear()
    monkeypatch.setattr(module, "FirstMessage", Stopper)
    monkeypatch.setattr(module, "Daemon", Resuming)
    with measured_daemon(make_tools(tmp_path), tmp_path, Site(brokers=BROKERS, streams=True)) as daemon:
        assert stopped
        assert daemon.connections == BROKERS
        always = {"supervisor", "input", "input-1", "router", "status"}
        assert daemon.processes - {"helper"} == always | {f"dispatcher-{slot}" for slot in range(BROKERS)}
