"""`bruce reload`: have a running daemon read its configuration anew, and say what came of it.

Exit status: 0 if it was applied, 1 if it was refused, 4 if no daemon answered.  With `--check` nothing is applied, and
the status is what it would be.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.pages import UnreadableError, add_address, add_token, pages_of
from bruce_mp.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_WHICH_ONE: Final = (
    "It goes by the configuration that is in force: give the file with its token as --token-file, or send it SIGHUP."
)


def main(argv: Sequence[str]) -> int:
    """Ask the daemon, and print what it says."""
    description = "Have a daemon read its configuration anew, as SIGHUP does, and say what came of it."
    statuses = "Exit status: 0 if it was applied, 1 if it was refused, 4 if no daemon answered."
    parser = ArgumentParser(prog="bruce reload", description=description, epilog=statuses)
    add_address(parser)
    add_token(parser)
    parser.add_argument("--check", action="store_true", help="only say what would change, and what needs a restart")
    args = parser.parse_args(argv)
    path = "/reload?check=1" if args.check else "/reload"
    status, text = pages_of(args).post(path)
    if status == HTTPStatus.OK:
        sys.stdout.write(text)
        return ExitCode.OK
    if status == HTTPStatus.UNAUTHORIZED:
        raise UnreadableError(f"The daemon answered {path} with {status}: {text.strip()}. {_WHICH_ONE}")
    if status != HTTPStatus.CONFLICT:
        raise UnreadableError(f"The daemon answered {path} with {status}: {text.strip()}")
    sys.stderr.write(text)
    return ExitCode.SETUP
