"""Run chaos for a chosen time on three brokers, real or embedded; see `support.chaos`.

    PYTHONPATH=tests python -m chaos --minutes 30 --seeds 23
    PYTHONPATH=tests python -m chaos --minutes 10 --seeds 1 2 3 --brokers 0.10.2.2
    PYTHONPATH=tests python -m chaos --minutes 1 --seeds 1 2 3 --brokers embedded
    PYTHONPATH=tests python -m chaos --minutes 5 --seeds 1 --fault-kinds process restart growth

Each seed is a separate run with a new daemon and new topics, on the same brokers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.devbroker.control import DevBroker
from chaos.old_brokers import V0_10, old_run
from chaos.runs import Run, run_chaos
from support import processes
from support.chaos_sites import Embedded, FaultKind, Real
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.chaos_sites import Site

BROKERS: Final = 3
FAULT_KINDS: Final = {kind.name.lower(): kind for kind in FaultKind}
EMBEDDED_MEMORY: Final = 4 << 30


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m chaos", description="Chaos on three brokers.")
    add = options.add_argument
    add("--minutes", type=float, default=30, help="how long each run lasts (30)")
    add("--rate", type=float, default=100, help="messages a second of each of three senders (100)")
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each (1)")
    add("--fault-kinds", choices=FAULT_KINDS, nargs="+", help="kinds of faults (all that the brokers allow)")
    add("--brokers", choices=SITES, default=NEWEST, help=f"which release of Kafka, or the embedded ones ({NEWEST})")
    return options.parse_args(arguments)


@contextmanager
def _real() -> Iterator[Site]:
    with KafkaCluster(NEWEST, brokers=BROKERS) as cluster:
        yield Real(cluster)


@contextmanager
def _old() -> Iterator[Site]:
    with KafkaCluster(V0_10.version, brokers=BROKERS, config=V0_10.config) as cluster:
        yield Real(cluster)


@contextmanager
def _embedded() -> Iterator[Site]:
    with DevBroker(brokers=BROKERS, strict=True, max_bytes=EMBEDDED_MEMORY) as broker:
        yield Embedded(broker, BROKERS)


SITES: Final = {NEWEST: _real, V0_10.version: _old, "embedded": _embedded}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    given = _parse(arguments)
    create_run = old_run if given.brokers == V0_10.version else Run
    processes.become_subreaper()
    with tempfile.TemporaryDirectory(prefix="bruce-chaos-") as directory, SITES[given.brokers]() as site:
        for seed in given.seeds:
            place = Path(directory) / f"seed-{seed}"
            place.mkdir()
            run = create_run(seed, given.minutes * 60, given.rate)
            if given.fault_kinds:
                run = replace(run, fault_kinds=[FAULT_KINDS[name] for name in given.fault_kinds])
            print(run_chaos(run, site, place), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
