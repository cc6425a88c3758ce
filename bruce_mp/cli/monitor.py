"""`bruce monitor`: a check for Nagios and compatible monitors.

The first line of the output is the summary, followed by `|` and the values with their limits. Each run stores the
daemon's counters in the state file, and reports their increases since the previous run. The first run reports these
increases as unknown, and its summary ends with "first check" if there are no faults.

Exit status: 0 OK, 1 warning, 2 critical (also for a daemon that does not answer), 3 unknown (also for invalid options).
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from bruce_mp.cli.monitoring.checks import CHECKS, Severity
from bruce_mp.cli.monitoring.readings import StateError, load_state, read_daemon, save_state
from bruce_mp.cli.options import exit_statuses
from bruce_mp.cli.status_client import UnreadableError, add_address, status_client
from bruce_mp.errors import BruceError
from bruce_mp.telemetry.books import balance_line

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from bruce_mp.cli.monitoring.checks import Result

__all__ = ["main"]

_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.OK)
"""The order of faults in the output. UNKNOWN comes after known faults, so that it hides none from the summary."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with 3 for invalid options, because Nagios takes the usual exit status 2 for CRITICAL."""
        self.print_usage(sys.stderr)
        self.exit(_report(Severity.UNKNOWN, message))


def main(argv: Sequence[str]) -> int:
    """Read the daemon's pages, evaluate the checks, and print the summary, then a line for each further fault."""
    args = _create_parser().parse_args(argv)
    try:
        return _check(args)
    except UnreadableError as error:
        return _report(Severity.CRITICAL, str(error))
    except BruceError as error:
        return _report(Severity.UNKNOWN, str(error))


def _create_parser() -> ArgumentParser:
    parser = _Parser(prog="bruce monitor", description="Check a daemon, for Nagios.", epilog=exit_statuses(__doc__))
    add_address(parser)
    help_text = "file that keeps the counters until the next check; give each daemon its own file"
    parser.add_argument("--state", type=Path, required=True, metavar="FILE", help=help_text)
    for check in CHECKS:
        for level, default in (("warning", check.warning), ("critical", check.critical)):
            shown = "none" if default is None else f"{default:g}"
            help_text = f"{check.meaning}: {level} above N (default {shown})"
            parser.add_argument(
                f"--{check.option}-{level}", type=_parse_limit, metavar="N", default=default, help=help_text
            )
    return parser


def _parse_limit(text: str) -> float:
    with suppress(ValueError):
        limit = float(text)
        if math.isfinite(limit):
            return limit
    raise ArgumentTypeError(f"{text!r} is not a number.")


def _check(args: Namespace) -> int:
    readings = read_daemon(status_client(args))
    faults: list[tuple[Severity, str]] = []
    previous_state = None
    try:
        previous_state = load_state(args.state)
        save_state(args.state, readings)
    except StateError as error:
        faults.append((Severity.UNKNOWN, str(error)))
    results = [check.evaluate(readings, previous_state, *_limits(args, check.option)) for check in CHECKS]
    faults += [(result.severity, result.text) for result in results if result.severity is not Severity.OK]
    if not faults:
        return _report(
            Severity.OK, balance_line(readings.books) + ("" if previous_state else "; first check"), results=results
        )
    (severity, summary), *further_faults = sorted(faults, key=lambda fault: _WORST_FIRST.index(fault[0]))
    return _report(severity, summary, [text for _, text in further_faults], results)


def _limits(args: Namespace, option: str) -> tuple[float | None, float | None]:
    name = option.replace("-", "_")
    return getattr(args, f"{name}_warning"), getattr(args, f"{name}_critical")


def _report(severity: Severity, summary: str, further_lines: Sequence[str] = (), results: Sequence[Result] = ()) -> int:
    """Print the lines that Nagios expects, with `further_lines` below the summary, and return the exit status."""
    values = " ".join(result.performance for result in results)
    # A | in a text would mark the beginning of the values.
    lines = [text.replace("|", "/") for text in (f"BRUCE {severity.name}: {summary}", *further_lines)]
    lines[0] += f" | {values}" if values else ""
    print("\n".join(lines))
    return severity
