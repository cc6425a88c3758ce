"""The simulation with few hosts: every scenario ends with all messages delivered, and starts and refreshes spread."""

from __future__ import annotations

import pytest

from scale.hosts import Requests
from scale.scenarios import CALM_MS, DEAD, SCENARIOS, Simulation, run

HOSTS = 25


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_host_delivers_all_its_messages_in_each_scenario(name: str) -> None:
    with Simulation(3, seed=1) as simulation:
        simulation.advance(CALM_MS)
        SCENARIOS[name](simulation)
        for host in simulation.hosts:
            assert host.is_settled()
            host.check()


def test_the_same_seed_gives_the_same_requests() -> None:
    name = "a broker dies and returns"
    assert run(name, 3, seed=5) == run(name, 3, seed=5)


@pytest.mark.exhaustive
def test_refreshes_spread() -> None:
    result = run("half an hour without an event", HOSTS, seed=1)
    assert result.requests >= HOSTS
    assert result.peak <= 3


@pytest.mark.exhaustive
def test_starts_spread() -> None:
    result = run("all hosts restart at once", HOSTS, seed=1)
    assert result.by_kind == {"metadata": HOSTS, "connection": 3 * HOSTS}
    assert result.peak <= 4 * 4, "four requests of a host, and few hosts in the same second of two minutes"


@pytest.mark.exhaustive
def test_a_dead_broker_causes_few_requests_for_each_host() -> None:
    result = run("a broker dies and returns", HOSTS, seed=1)
    assert result.peak <= 4 * HOSTS
    assert result.requests <= 14 * HOSTS
    assert result.returned_peak <= 2 * HOSTS


@pytest.mark.exhaustive
def test_failovers_spread_when_the_config_spreads_them() -> None:
    result = run("a broker dies and returns", HOSTS, seed=1, failover_spread_s=60)
    assert result.peak <= 10, "two requests of a host, and few hosts in the same second of a minute"
    assert result.requests <= 5 * HOSTS


def test_the_broker_of_a_paused_dispatcher_is_failing() -> None:
    with Simulation(1, seed=1) as simulation:
        simulation.advance(CALM_MS)
        [host] = simulation.hosts
        assert host.router.brokers_to_ask_last == []
        simulation.lead(lambda node: None if node == DEAD else node)
        simulation.stop_broker(DEAD)
        simulation.advance(simulation.now_ms + 150)
        assert [address.port for address in host.router.brokers_to_ask_last] == [DEAD]


def test_requests_are_counted_by_second_and_broker() -> None:
    requests = Requests()
    for at_ms in (999, 1000, 1999):
        requests.record("metadata", 1, at_ms, is_down=False)
    requests.record("metadata", 1, 1000, is_down=True)
    assert requests.by_second == {0: 1, 1: 2}
    assert requests.by_broker[1] == {0: 1, 1: 2}
    assert requests.refused == 1
