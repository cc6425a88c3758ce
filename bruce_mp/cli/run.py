"""`bruce run`: the daemon, until SIGTERM.

Exit status: 0 after a shutdown, 1 if it could not start, 70 if one of its processes failed at boot again and again.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.configuration import add_overrides
from bruce_mp.config.load import load_config
from bruce_mp.supervisor.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Be the daemon."""
    parser = ArgumentParser(prog="bruce run", description="Run the daemon in the foreground.")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the configuration")
    add_overrides(parser)
    args = parser.parse_args(argv)
    return run(load_config(args.config, args.overrides), args.config)
