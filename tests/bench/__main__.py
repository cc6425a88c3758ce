"""`scripts/bench`: run the benchmark, print the tables, write the figures.

Exit code 1 when a figure was refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.cases import GROUPS, IDLE, case_names, choose_cases
from bench.machine import OthersLoad, facts
from bench.results import FORMAT, Recorded, Report, figure_of
from bench.session import Plan, Session
from bench.table import render
from support import processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMES: Final = ", ".join(case_names()).replace("%", "%%")
BASELINE: Final = Path(__file__).with_name("baseline.json")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="scripts/bench",
        description="What a message costs in the daemon, as a multiple of what receiving it costs a plain loop.",
        epilog="Programs of their own, each with --help: scripts/bench applications (application and daemon together, "
        "beside Kafka clients in the process), outage (what a broker's death does to the partitions of the others), "
        "restarts (what a sender notices of an upgrade and of restarts), spark (the Spark sink and the audit).",
    )
    add = options.add_argument
    add("groups", nargs="*", metavar="GROUP", help=f"only these groups: {', '.join(GROUPS)} (default: all)")
    add("--quick", action="store_true", help="one repetition with a quarter of the messages: a first impression")
    add(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="only this, repeatable, or a pattern such as 'datagrams 100B */s 50t 3b'; the group ordinary also has "
        f"cells with any other pace, topics and brokers of its grid. All others: {NAMES}",
    )
    add("--repeat", type=int, metavar="N", help="repetitions (default 3); the figures are medians")
    add("--json", type=Path, metavar="FILE", help="write everything, each single run included, to a file")
    add("--record", action="store_true", help="make the figures of this run the baseline of later ones")
    chosen = options.parse_args(arguments)
    without_case = [name for name in chosen.case if name != IDLE and not any(choose_cases(g, [name]) for g in GROUPS)]
    if unknown := [*(set(chosen.groups) - GROUPS.keys()), *without_case]:
        options.error(f"there is no {unknown[0]!r}; --help lists groups and cases")
    if chosen.repeat is not None and chosen.repeat < 1:
        options.error("--repeat takes a number from 1 up")
    if chosen.record and chosen.quick:
        options.error("a baseline has every case in full: --record does not go with --quick")
    return chosen


def _wanted(options: argparse.Namespace) -> list[str]:
    """Return the named groups, or the groups of the named cases, or all groups."""
    if options.groups or not options.case:
        return options.groups or list(GROUPS)
    idle = ["loads"] if IDLE in options.case else []
    return [name for name in GROUPS if name in idle or choose_cases(name, options.case)]


def _measure(group: str, options: argparse.Namespace) -> Report:
    others = OthersLoad()
    session = Session(Plan.of(group, options.case, options.repeat, quick=options.quick))
    session.run()
    good = [case.name for case in session.plan.cases if case.name not in session.refused]
    by_case = {name: [pair for pair in session.pairs if pair.case == name] for name in good}
    machine = facts()
    sitting = f"{machine['date']}, commit {machine['commit']}, repetitions {session.repetitions}"
    return Report(
        machine=machine
        | {"plain receiver": session.language, "repetitions": session.repetitions}
        | {"cores busy with other work": round(others.cores(), 2)},
        figures={name: figure_of(pairs, sitting) for name, pairs in by_case.items() if pairs},
        refused=session.refused,
        absent=session.absent,
        idle=session.lives[0].idle if session.plan.idle_s and session.lives else None,
        lives=session.lives,
        pairs=session.pairs,
    )


def _write(path: Path, groups: Mapping[str, Report]) -> None:
    recorded = Recorded(format=FORMAT, groups=dict(groups))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(recorded), indent=1) + b"\n")


def merge(before: Report | None, now: Report, *, is_whole: bool) -> Report:
    """Return the next baseline of a group, without single runs; without `is_whole` other figures stay."""
    if before is None or is_whole:
        return msgspec.structs.replace(now, pairs=[])
    idle, lives = (now.idle, now.lives) if now.idle else (before.idle, before.lives)
    return msgspec.structs.replace(before, figures=before.figures | now.figures, idle=idle, lives=lives)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, and return the exit code."""
    options = _parse(arguments)
    processes.become_subreaper()
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Recorded).groups if BASELINE.exists() else {}
    groups: dict[str, Report] = {}
    for name in _wanted(options):
        groups[name] = _measure(name, options)
        print(f"{render(name, groups[name], baseline.get(name))}\n", flush=True)
    if options.json:
        _write(options.json, groups)
    if options.record:
        merged = {name: merge(baseline.get(name), new, is_whole=not options.case) for name, new in groups.items()}
        _write(BASELINE, baseline | merged)
    return 1 if any(report.refused for report in groups.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
