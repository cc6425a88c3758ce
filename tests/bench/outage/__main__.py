"""`scripts/bench outage`: kill a broker under traffic, and print the effect on the others' partitions.

Exit code 1 when there is no figure, or when the unaffected partitions did not keep their throughput.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.machine import OthersLoad, facts, scratch_directory
from bench.outage.drive import EMBEDDED_TIMES, KAFKA_TIMES, Loads, drive
from bench.outage.figures import report_of
from bench.outage.results import TARGET
from bench.outage.sites import Embedded, RealKafka
from bench.outage.table import render
from support import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.outage.results import Report

LOADS: Final = Loads()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="scripts/bench outage",
        description="Throughput and latency of the unaffected partitions before, during and after a broker's death.",
    )
    add = options.add_argument
    add("--kafka", action="store_true", help="real brokers instead of the embedded ones: 100 s instead of 60")
    add("--json", type=Path, metavar="FILE", help="write everything to a file")
    return options.parse_args(arguments)


def _measure(*, kafka: bool) -> Report:
    others = OthersLoad()
    site_of, times = (RealKafka, KAFKA_TIMES) if kafka else (Embedded, EMBEDDED_TIMES)
    with scratch_directory() as directory, site_of.open(LOADS.topics) as site:
        observed = drive(site, LOADS, times, directory)
    machine = facts() | {"brokers": site.traits.name, "cores busy with other work": round(others.cores(), 2)}
    return report_of(observed, site.traits, machine)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, and return the exit code."""
    options = _parse(arguments)
    processes.become_subreaper()
    try:
        report = _measure(kafka=options.kafka)
    except AssertionError as error:  # its text names the step that took too long
        print(f"NO FIGURE: {error}")
        return 1
    print(render(report))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 1 if report.refusals or report.kept < TARGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
