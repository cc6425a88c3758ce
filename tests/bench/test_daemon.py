"""Measurements begin after all processes of the daemon have started."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from bench import cost
from bench.cases import Site
from bench.daemon import LOADING, is_whole, measured_daemon
from bench.tools import make_tools

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import Daemon

BROKERS = 3


class StartingDaemon:
    """A daemon with a number of dispatchers that have begun."""

    def __init__(self, begun: int) -> None:
        self.pid = 1
        self.begun = begun

    def counted(self, _: object) -> int:
        return self.begun


@pytest.mark.parametrize(
    ("begun", "titles", "whole"),
    [
        (BROKERS, ("router", "dispatcher-0"), True),
        (BROKERS - 1, ("router", "dispatcher-0"), False),
        (BROKERS, ("router", f"dispatcher-0{LOADING}"), False),
    ],
)
def test_a_daemon_is_whole_once_each_dispatcher_has_begun_and_no_process_loads(
    monkeypatch: pytest.MonkeyPatch, begun: int, titles: tuple[str, ...], whole: bool
) -> None:
    monkeypatch.setattr(cost, "family", lambda _: dict.fromkeys(titles))
    assert is_whole(cast("Daemon", StartingDaemon(begun)), Site(brokers=BROKERS)) is whole


@pytest.mark.process
def test_a_measured_daemon_has_all_processes_and_connections(tmp_path: Path) -> None:
    with measured_daemon(make_tools(tmp_path), tmp_path, Site(brokers=BROKERS, streams=True)) as daemon:
        assert daemon.connections == BROKERS
        always = {"supervisor", "input", "input-1", "router", "status"}
        assert daemon.processes - {"helper"} == always | {f"dispatcher-{slot}" for slot in range(BROKERS)}
