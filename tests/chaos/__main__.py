"""A soak by hand: chaos on a real three-broker Kafka for as long as one wants; see `support.chaos`.

    PYTHONPATH=tests python -m chaos --minutes 30 --seeds 23
    PYTHONPATH=tests python -m chaos --minutes 10 --seeds 1 2 3 --version 0.10.2.2

Each seed is a run of its own, with a daemon and topics of its own, on the same brokers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.old_brokers import V0_10, old_run
from chaos.runs import Run, run_chaos
from support import processes
from support.chaos_sites import Real
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m chaos", description="Chaos on real brokers.")
    add = options.add_argument
    add("--minutes", type=float, default=30, help="how long each run lasts (30)")
    add("--rate", type=float, default=100, help="messages a second of each of three senders (100)")
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each (1)")
    add("--version", choices=(NEWEST, V0_10.version), default=NEWEST, help=f"of Kafka ({NEWEST})")
    return options.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run it; the exit code."""
    given = _parse(arguments)
    is_old = given.version == V0_10.version
    processes.become_subreaper()
    with (
        tempfile.TemporaryDirectory(prefix="bruce-chaos-") as directory,
        KafkaCluster(given.version, brokers=3, config=V0_10.config if is_old else None) as cluster,
    ):
        for seed in given.seeds:
            place = Path(directory) / f"seed-{seed}"
            place.mkdir()
            make = old_run if is_old else Run
            print(run_chaos(make(seed, given.minutes * 60, given.rate), Real(cluster), place), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
