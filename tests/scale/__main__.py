"""`scripts/simulate`: run the scenarios, and print the busiest second of each."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import TYPE_CHECKING

from scale.scenarios import SCENARIOS, run

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(prog="scripts/simulate", description="What many daemons do to one cluster.")
    options.add_argument("--hosts", type=int, default=1000, metavar="N", help="daemons (default 1000)")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="the same seed gives the same requests")
    options.add_argument("--spread", type=int, default=0, metavar="S", help="delivery.failover_spread_s (default 0)")
    options.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this, repeatable")
    chosen = options.parse_args(arguments)
    logging.disable()  # a line for each error answer of each host
    print(f"{'':34}{'requests':>10}{'busiest second':>16}{'share':>8}{'at s':>6}{'returned broker':>17}{'refused':>9}")
    for name in chosen.scenario or SCENARIOS:
        began = time.monotonic()
        result = run(name, chosen.hosts, chosen.seed, chosen.spread)
        print(
            f"{name:34}{result.requests:10}{result.peak:16}{result.share:8.1%}{result.peak_second:6}"
            f"{result.returned_peak:17}{result.refused:9}  {result.by_kind} in {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
