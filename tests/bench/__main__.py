"""`scripts/bench`: run the benchmark, print the table, write the figures.

Exit code 1 when a figure was refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.cases import CASES, IDLE
from bench.machine import OthersLoad, facts
from bench.results import FORMAT, Report, figure_of
from bench.session import Plan, Session
from bench.table import render
from support import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

BASELINE: Final = Path(__file__).with_name("baseline.json")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [*(case.name for case in CASES), IDLE]
    options = argparse.ArgumentParser(
        prog="scripts/bench",
        description="What a message costs in the daemon, as a multiple of what receiving it costs a plain loop.",
    )
    add = options.add_argument
    add("--quick", action="store_true", help="one repetition with a quarter of the messages: a first impression")
    only = f"only this, repeatable: {', '.join(names)}"
    add("--case", action="append", default=[], choices=names, metavar="NAME", help=only)
    add(
        "--repeat",
        type=int,
        metavar="N",
        help="repetitions (default 3); the figures are medians",
    )
    add("--json", type=Path, metavar="FILE", help="write everything, each single run included, to a file")
    add("--record", action="store_true", help="make this run the baseline that later runs are compared with")
    chosen = options.parse_args(arguments)
    if chosen.repeat is not None and chosen.repeat < 1:
        options.error("--repeat takes a number from 1 up")
    if chosen.record and (chosen.case or chosen.quick):
        options.error("a baseline has every case in full: --record goes with neither --case nor --quick")
    return chosen


def _measure(options: argparse.Namespace) -> Report:
    others = OthersLoad()
    session = Session(Plan.of(options.case, options.repeat, quick=options.quick))
    session.run()
    good = [case.name for case in session.plan.cases if case.name not in session.refused]
    by_case = {name: [pair for pair in session.pairs if pair.case == name] for name in good}
    return Report(
        format=FORMAT,
        machine=facts()
        | {"plain receiver": session.language, "repetitions": session.repetitions}
        | {"cores busy with other work": round(others.cores(), 2)},
        figures={name: figure_of(pairs) for name, pairs in by_case.items() if pairs},
        refused=session.refused,
        idle=session.lives[0].idle if session.plan.idle_s and session.lives else None,
        lives=session.lives,
        pairs=session.pairs,
    )


def _write(path: Path, report: Report) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def main(arguments: Sequence[str]) -> int:
    """Run it; the exit code."""
    options = _parse(arguments)
    processes.become_subreaper()
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Report) if BASELINE.exists() else None
    report = _measure(options)
    print(render(report, baseline))
    if options.json:
        _write(options.json, report)
    if options.record:
        _write(BASELINE, report)
    return 1 if report.refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
