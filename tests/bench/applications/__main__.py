"""`scripts/bench applications`: measure application and daemon together, beside Kafka clients in the process.

Exit code 1 when a figure was refused.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.applications.measure import LOADS, measure, resting_daemon
from bench.applications.results import Applications, figures_of, render
from bench.applications.senders import SENDERS, AbsentError
from bench.machine import OthersLoad, facts, scratch_directory
from bench.tools import SendError, make_tools
from support import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.applications.results import Cost, Load
    from bench.applications.senders import Sender

RECORDED: Final = Path(__file__).parents[1] / "applications.json"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = ", ".join(sender.name for sender in SENDERS)
    options = argparse.ArgumentParser(
        prog="scripts/bench applications",
        description="CPU of a message in the application and in the daemon, and in Kafka clients without a daemon.",
    )
    add = options.add_argument
    add("--sender", action="append", default=[], metavar="NAME", help=f"only this, repeatable: {names}")
    add("--load", action="append", default=[], metavar="NAME", help="only this: " + ", ".join(x.name for x in LOADS))
    add("--repeat", type=int, default=3, metavar="N", help="repetitions (default 3); the figures are medians")
    add("--messages", type=int, metavar="N", help="at most so many messages a load")
    add("--json", type=Path, metavar="FILE", help="write the figures to a file")
    add("--record", action="store_true", help="write them to tests/bench/applications.json, for the chart")
    chosen = options.parse_args(arguments)
    known = {sender.name for sender in SENDERS} | {load.name for load in LOADS}
    if unknown := [*(set(chosen.sender + chosen.load) - known)]:
        options.error(f"there is no {unknown[0]!r}; --help lists senders and loads")
    if chosen.record and (chosen.sender or chosen.load or chosen.messages):
        options.error("a record has every sender and load in full: --record goes with no selection")
    return chosen


@dataclass(slots=True)
class _Sitting:
    """The runs of all repetitions."""

    senders: Sequence[Sender]
    loads: Sequence[Load]
    costs: list[Cost] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def run(self, repetitions: int) -> None:
        with scratch_directory() as place:
            tools = make_tools(place)
            for number in range(repetitions):
                home = place / str(number)
                home.mkdir()
                with resting_daemon(tools, home) as daemon:
                    for sender in self.senders:
                        try:
                            self.costs.extend(measure(sender, self.loads, tools, place, daemon))
                        except AbsentError as error:
                            self.absent[sender.name] = str(error)
                        except (SendError, TimeoutError) as error:
                            self.refused[sender.name] = str(error)
                        print(f"{number + 1}/{repetitions} {sender.name}", file=sys.stderr, flush=True)


def _shortened(load: Load, most: int | None) -> Load:
    return load if most is None else msgspec.structs.replace(load, messages=min(load.messages, most))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, and return the exit code."""
    options = _parse(arguments)
    processes.become_subreaper()
    others = OthersLoad()
    senders = [sender for sender in SENDERS if not options.sender or sender.name in options.sender]
    loads = [_shortened(load, options.messages) for load in LOADS if not options.load or load.name in options.load]
    sitting = _Sitting(senders, loads)
    sitting.run(options.repeat)
    machine = facts() | {"repetitions": options.repeat, "cores busy with other work": round(others.cores(), 2)}
    report = Applications(machine, figures_of(sitting.costs), sitting.absent, sitting.refused)
    print(render(report, loads))
    for path in (options.json, RECORDED if options.record else None):
        if path is not None:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 1 if sitting.refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
