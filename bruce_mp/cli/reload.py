"""`bruce reload`: request a reload of the configuration from a running daemon, and print the outcome.

Exit status: 0 if the daemon applied the reload, 1 if it refused the reload, 4 if it gave another response or none. With
`--check` the daemon applies nothing, and the exit status is the same as for the reload itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.status_client import add_address, add_token, request_change

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    description = "Reload the configuration of a running daemon, as SIGHUP does, and print the outcome."
    parser = command_parser("reload", description, __doc__)
    add_address(parser)
    add_token(parser)
    help_text = "only list the changes that a reload would apply, and those that need a restart"
    parser.add_argument("--check", action="store_true", help=help_text)
    args = parser.parse_args(argv)
    return request_change(args, "/reload?check=1" if args.check else "/reload")
