"""`bruce send`: the command in `bruce_mp.client.send`, a module that also works without the daemon's dependencies.

Exit status: 0 if the kernel accepted every message, 1 if it did not or if `--flush` finds an undelivered message, 2 for
wrong options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.cli.options import command_parser
from bruce_mp.client.send import add_arguments, run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = command_parser("send", "Send messages to a daemon.", __doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))
