"""The scenarios: each lasts ten minutes, and reports the requests of all hosts by second.

Counted are connections of dispatchers and metadata fetches; a daemon's produce requests follow its traffic. A broker
that is down receives nothing, so attempts at it have a count of their own.
"""

from __future__ import annotations

import heapq
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.file import Geometry
from scale.hosts import TOPICS, Host, Requests
from support.machine import BROKERS
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["SCENARIOS", "Result", "run"]

GEOMETRY: Final = Geometry(chunks=64, topics=8, partitions=32, landing_slots=4, landing_slot_size=4096)
MINUTE_MS: Final = 60_000
CALM_MS: Final = 2 * MINUTE_MS
"""Time before the event of a scenario, in which every host has met every broker."""
LASTS_MS: Final = 10 * MINUTE_MS
ELECTION_MS: Final = 9_000
"""`broker.session.timeout.ms` of a KRaft cluster: until then the partitions of a dead broker have no leader."""
DOWN_MS: Final = 60_000
DEAD: Final = BROKERS[0]


@dataclass(frozen=True, slots=True)
class Result:
    """The requests of a scenario, counted from its event on; the peak of the returned broker is of connections."""

    requests: int
    by_kind: dict[str, int]
    peak: int
    peak_second: int
    """After the event."""
    returned_peak: int
    refused: int
    """Attempts at a broker that was down."""

    @property
    def share(self) -> float:
        """Share of all requests in the busiest second."""
        return self.peak / max(self.requests, 1)


class Simulation:
    """All hosts on one clock, and one cluster's state for all of them."""

    def __init__(self, hosts: int, seed: int, failover_spread_s: int = 0) -> None:
        self._stack = ExitStack()
        self.requests = Requests()
        self.now_ms = 0
        slabs = (self._stack.enter_context(new_slab(GEOMETRY)) for _ in range(hosts))
        self.hosts = [
            Host(slab, self.requests, seed * hosts + number, failover_spread_s) for number, slab in enumerate(slabs)
        ]
        self._timers = [(host.now_ms, number) for number, host in enumerate(self.hosts)]
        self._due = dict(enumerate(host.now_ms for host in self.hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()
        self._stack.close()

    def advance(self, until_ms: int) -> None:
        """Run all hosts up to a moment."""
        while self._timers and self._timers[0][0] <= until_ms:
            at_ms, number = heapq.heappop(self._timers)
            if self._due[number] == at_ms:
                self.now_ms = at_ms
                self._schedule(number, self.hosts[number].run(at_ms))
        self.now_ms = until_ms

    def _schedule(self, number: int, at_ms: int) -> None:
        self._due[number] = at_ms
        heapq.heappush(self._timers, (at_ms, number))

    def each(self, event: Callable[[Host], None]) -> None:
        """Let an event happen to every host now."""
        for number, host in enumerate(self.hosts):
            host.now_ms = host.input.now_ms = self.now_ms
            event(host)
            self._schedule(number, self.now_ms)

    # --- the cluster -------------------------------------------------------------------------------------------------

    def lead(self, leader_of: Callable[[int], int | None]) -> None:
        """Give each partition the leader that follows from the preferred one."""
        for host in self.hosts:
            for topic, nodes in TOPICS.items():
                for partition, node in enumerate(nodes):
                    host.cluster.leaders[topic, partition] = leader_of(node)

    def stop_broker(self, node: int) -> None:
        """Stop a broker while every host has messages for it."""
        self.each(lambda host: host.lose_broker(node, self.now_ms))
        self.each(Host.send_to_each_broker)

    def start_broker(self, node: int) -> None:
        """Start a broker, which leads its partitions again, while every host has messages for it."""
        for host in self.hosts:
            host.down.discard(node)
        self.lead(lambda preferred: preferred)
        self.each(Host.send_to_each_broker)


def _restart_hosts(simulation: Simulation) -> None:
    simulation.each(Host.restart)
    simulation.each(Host.send_to_each_broker)
    simulation.advance(simulation.now_ms + LASTS_MS)


def _die(simulation: Simulation) -> None:
    simulation.lead(lambda node: None if node == DEAD else node)
    simulation.stop_broker(DEAD)
    simulation.advance(simulation.now_ms + ELECTION_MS)
    simulation.lead(_without(DEAD))
    simulation.advance(simulation.now_ms + DOWN_MS)
    simulation.start_broker(DEAD)
    simulation.advance(simulation.now_ms + LASTS_MS - ELECTION_MS - DOWN_MS)


def _roll(simulation: Simulation) -> None:
    end_ms = simulation.now_ms + LASTS_MS
    for node in BROKERS:
        simulation.lead(_without(node))
        simulation.stop_broker(node)
        simulation.advance(simulation.now_ms + DOWN_MS)
        simulation.start_broker(node)
        simulation.advance(simulation.now_ms + DOWN_MS)
    simulation.advance(end_ms)


def _lose_all(simulation: Simulation) -> None:
    for node in BROKERS:
        simulation.stop_broker(node)
    simulation.advance(simulation.now_ms + ELECTION_MS + DOWN_MS)
    for node in BROKERS:
        simulation.start_broker(node)
    simulation.advance(simulation.now_ms + LASTS_MS - ELECTION_MS - DOWN_MS)


def _without(node: int) -> Callable[[int], int]:
    """Return the leaders while a broker is down: the next one leads its partitions."""
    heir = BROKERS[BROKERS.index(node) - 1]
    return lambda preferred: heir if preferred == node else preferred


def _stay(simulation: Simulation) -> None:
    simulation.advance(simulation.now_ms + 3 * LASTS_MS)


SCENARIOS: Final[dict[str, Callable[[Simulation], None]]] = {
    "half an hour without an event": _stay,
    "all hosts restart at once": _restart_hosts,
    "a broker dies and returns": _die,
    "all brokers restart in turn": _roll,
    "all brokers are gone for 69 s": _lose_all,
}


def run(name: str, hosts: int, seed: int, failover_spread_s: int = 0) -> Result:
    """Run a scenario after two calm minutes."""
    with Simulation(hosts, seed, failover_spread_s) as simulation:
        simulation.advance(CALM_MS)
        began_s = simulation.now_ms // 1000
        simulation.requests = requests = Requests()
        for host in simulation.hosts:
            host.count = requests
        SCENARIOS[name](simulation)
        second, peak = max(requests.by_second.items(), key=lambda item: item[1], default=(began_s, 0))
        returned = requests.by_broker[DEAD]
        up_again_s = began_s + (ELECTION_MS + DOWN_MS) // 1000
        late = (count for at, count in returned.items() if at >= up_again_s)
        return Result(
            requests=sum(requests.by_second.values()),
            by_kind=dict(requests.by_kind),
            peak=peak,
            peak_second=second - began_s,
            returned_peak=max(late, default=0),
            refused=requests.refused,
        )
