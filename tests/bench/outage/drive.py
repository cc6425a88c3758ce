"""One outage from beginning to end: traffic, the death, the return, the books, and reading everything back.

The phases:

    before  all brokers run
    down    from the death on
    back    from the restart of the broker until it is back and all its partitions receive messages
    after   all brokers run again

The pace of the traffic is constant.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.machine import busy_s
from bench.outage import sender
from bench.outage.direct import DirectProducer
from bench.outage.load import Load, Place
from bench.outage.sites import client_of
from bench.outage.watcher import Watcher
from bruce_mp.telemetry.counters import Counter
from support.daemon import UNHURRIED_PAUSES, Daemon
from support.kafka_reader import read_topics
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.outage.sites import Site
    from bench.outage.watcher import Arrival
    from bruce_mp.telemetry.books import Books
    from support.kafka_reader import Record

__all__ = ["EMBEDDED_TIMES", "KAFKA_TIMES", "Loads", "Observed", "Phase", "Times", "drive"]

FLOW_TIMEOUT_S: Final = 30.0
SETTLE_TIMEOUT_S: Final = 30.0
SETTINGS: Final[Mapping[str, object]] = {
    "slab.size": "128m",
    "logging.level": "NOTICE",
    **UNHURRIED_PAUSES,
}


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of the phases in seconds; a minimum for `back`."""

    warm_up: float
    before: float
    down: float
    back: float
    after: float


EMBEDDED_TIMES: Final = Times(warm_up=2, before=12, down=15, back=5, after=12)
KAFKA_TIMES: Final = Times(warm_up=4, before=15, down=20, back=5, after=15)


class Loads(NamedTuple):
    """The loads of the daemon and of the direct producer, each with separate topics."""

    load: Load = Load()
    direct: Load = Load(rate=200, topics=("outage-direct",))

    @property
    def topics(self) -> dict[str, int]:
        """Number of partitions by topic."""
        return {topic: load.partitions for load in self for topic in load.topics}

    @property
    def places(self) -> list[Place]:
        return [place for load in self for place in load.places]


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the load; `cores` is the number of busy cores of the machine, for all programs."""

    name: str
    start_ns: int
    end_ns: int
    cores: float

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(slots=True)
class Observed:
    """All observations.  Times are in ns since the epoch."""

    load: Load
    direct: Load
    killed_places: frozenset[Place]
    phases: list[Phase] = field(default_factory=list)
    killed_ns: int = 0
    back_ns: int = 0
    sent: int = 0
    pauses: int = 0
    books: Books | None = None
    arrivals: Sequence[Arrival] = ()
    records: Mapping[Place, Sequence[Record]] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a phase as long as its `with` block."""
        start_ns, busy = time.time_ns(), busy_s()
        yield
        end_ns, work = time.time_ns(), busy_s() - busy
        self.phases.append(Phase(name, start_ns, end_ns, work * 1e9 / (end_ns - start_ns)))
        print(f"{name:<7} {self.phases[-1].seconds:5.1f} s", file=sys.stderr, flush=True)


def drive(site: Site, loads: Loads, times: Times, directory: Path) -> Observed:
    """Kill and restart a broker under traffic, and return the observations."""
    observed = Observed(*loads, site.killed_places())
    client = client_of(site)
    with Daemon(directory, site.bootstrap, SETTINGS) as daemon, Watcher(client, loads.places) as watcher:
        with DirectProducer(client, loads.direct) as direct:
            sending = sender.start(loads.load, daemon.socket_path)
            _live_through(site, times, watcher, observed)
            observed.sent = sender.stop(sending)
        observed.books = daemon.wait_settled(observed.sent, SETTLE_TIMEOUT_S)
        observed.pauses = daemon.counted(Counter.PauseStarted)
        everything = observed.sent + direct.sent
        wait_until(lambda: len(watcher.arrivals) >= everything, "the watcher has seen everything")
        observed.arrivals = watcher.arrivals
    read = read_topics(client, loads.topics, everything)
    observed.records = {Place(*place): records for place, records in read.items()}
    return observed


def _live_through(site: Site, times: Times, watcher: Watcher, observed: Observed) -> None:
    wait_until(lambda: watcher.seen_all_since(watcher.places, 0), "traffic on all partitions")
    time.sleep(times.warm_up)
    with observed.phase("before"):
        time.sleep(times.before)
    with observed.phase("down"):
        observed.killed_ns = time.time_ns()
        site.kill()
        time.sleep(times.down)
    with observed.phase("back"):
        observed.back_ns = time.time_ns()
        site.bring_back()
        _wait_for_flow(watcher, observed)
        time.sleep(max(0.0, times.back - (time.time_ns() - observed.back_ns) / 1e9))
    with observed.phase("after"):
        time.sleep(times.after)


def _wait_for_flow(watcher: Watcher, observed: Observed) -> None:
    now_ns = time.time_ns()
    wait_until(
        lambda: watcher.seen_all_since(observed.killed_places, now_ns),
        "the dead broker's partitions flow",
        FLOW_TIMEOUT_S,
    )
