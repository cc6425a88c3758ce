"""`bruce run`: run the daemon until SIGTERM.

Exit status: 0 after a shutdown, 1 after a failed start, 70 after repeated boot failures of a process.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.cli.overrides import add_overrides
from bruce_mp.config.load import load_config
from bruce_mp.errors import ExitCode
from bruce_mp.supervisor.process import run
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.upgrade.preflight import CHECK_OPTION, load_and_report

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run the daemon, or only its preflight check."""
    parser = ArgumentParser(prog="bruce run", description="Run the daemon in the foreground.")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the configuration")
    add_overrides(parser)
    parser.add_argument(
        CHECK_OPTION, action="store_true", help="only run the preflight check, and print its result as JSON"
    )
    args = parser.parse_args(argv)
    if args.check:
        print(msgspec.json.encode(load_and_report(load_config(args.config, args.overrides), PROGRAMS)).decode())
        return ExitCode.OK
    return run(load_config(args.config, args.overrides), args.config, args.overrides)
