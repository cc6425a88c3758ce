"""`bruce reload`: request a reload of the configuration from a running daemon, and print the outcome.

Exit status: 0 if the reload was applied, 1 if it was refused, 4 if no daemon answered. With `--check` the daemon
applies nothing; the exit status is the same as for a reload.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.status_client import UnreadableError, add_address, add_token, status_client
from bruce_mp.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_HINT: Final = "The configuration in force names the token: give its file as --token-file, or send the daemon SIGHUP."


def main(argv: Sequence[str]) -> int:
    """Request the reload and print the response."""
    description = "Reload the configuration of a running daemon, as SIGHUP does, and print the outcome."
    statuses = "Exit status: 0 if the reload was applied, 1 if it was refused, 4 if no daemon answered."
    parser = ArgumentParser(prog="bruce reload", description=description, epilog=statuses)
    add_address(parser)
    add_token(parser)
    parser.add_argument("--check", action="store_true", help="only list the changes, and the need for a restart")
    args = parser.parse_args(argv)
    path = "/reload?check=1" if args.check else "/reload"
    status, text = status_client(args).post(path)
    if status == HTTPStatus.OK:
        sys.stdout.write(text)
        return ExitCode.OK
    if status == HTTPStatus.UNAUTHORIZED:
        raise UnreadableError(f"The daemon answered {path} with {status}: {text.strip()}. {_HINT}")
    if status != HTTPStatus.CONFLICT:
        raise UnreadableError(f"The daemon answered {path} with {status}: {text.strip()}")
    sys.stderr.write(text)
    return ExitCode.SETUP
