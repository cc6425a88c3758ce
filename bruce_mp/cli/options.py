"""Parts of command-line parsers that several subcommands share."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_overrides", "command_parser", "exit_statuses", "port_number", "seconds_from"]

_MAX_PORT: Final = 65535
_MAX_SECONDS: Final = 1_000_000
"""Longest time in seconds, 11 days: a socket and select() do not accept just any number."""


def exit_statuses(documentation: str | None) -> str:
    """Return the paragraph of a module's docstring that begins with "Exit status:", for the end of the help.

    Return an empty text under `python -OO`, which removes the docstrings.
    """
    paragraphs = (documentation or "").split("\n\n")
    return next((paragraph.strip() for paragraph in paragraphs if paragraph.startswith("Exit status:")), "")


def command_parser(command: str, description: str, documentation: str | None) -> ArgumentParser:
    """Return a parser for `bruce COMMAND`; `documentation` is the docstring of the command's module."""
    return ArgumentParser(prog=f"bruce {command}", description=description, epilog=exit_statuses(documentation))


def add_overrides(parser: ArgumentParser) -> None:
    """Add the option `--set`, for settings that override the configuration file."""
    help_text = "a setting that overrides the file, such as slab.size=64m; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=help_text)


def port_number(text: str) -> int:
    """Parse a TCP port, as an argument type."""
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PORT:
        raise ArgumentTypeError(f"{text} is not an integer from 1 to {_MAX_PORT}")
    return int(text)


def seconds_from(minimum: float) -> Callable[[str], float]:
    """Return an argument type for a number of seconds from `minimum` to `_MAX_SECONDS`."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not minimum <= seconds <= _MAX_SECONDS:  # NaN fails this comparison
            raise ArgumentTypeError(f"{text} is not a number of seconds from {minimum:g} to {_MAX_SECONDS}")
        return seconds

    return parse
