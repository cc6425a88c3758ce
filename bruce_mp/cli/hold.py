"""`bruce hold`: keep the listening sockets open while the daemon restarts, until SIGTERM.

Exit status: 0 after SIGTERM, 1 after a failed start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.options import add_overrides, command_parser
from bruce_mp.supervisor.hold import keep_sockets
from bruce_mp.supervisor.reload import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = command_parser(
        "hold", "Keep the daemon's listening sockets open while it restarts, until SIGTERM.", __doc__
    )
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the daemon's configuration file")
    add_overrides(parser)
    args = parser.parse_args(argv)
    return keep_sockets(ConfigSource(args.config.absolute(), args.overrides))
