"""`bruce run`: run the daemon in the foreground until SIGTERM.

Exit status: 0 after a shutdown, 1 after a failed start, 70 if a process failed repeatedly during its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.cli.options import add_overrides, command_parser
from bruce_mp.config.load import load_config
from bruce_mp.errors import ExitCode
from bruce_mp.supervisor.process import run
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.upgrade.preflight import CHECK_OPTION, load_and_report

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run the daemon. If `--check` is given, only check the configuration, and load the modules of all processes."""
    parser = command_parser("run", "Run the daemon in the foreground until SIGTERM.", __doc__)
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the configuration file")
    add_overrides(parser)
    help_text = "only check the configuration and the installed code, and print the result as JSON"
    parser.add_argument(CHECK_OPTION, action="store_true", help=help_text)
    args = parser.parse_args(argv)
    config = load_config(args.config, args.overrides)
    if args.check:
        print(msgspec.json.encode(load_and_report(config, PROGRAMS)).decode())
        return ExitCode.OK
    return run(config, args.config, args.overrides)
