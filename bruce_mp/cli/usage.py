"""Help, version and usage errors of `bruce` without a subcommand.

Separate because `multiprocessing` imports `commands` again in each child process, and these processes do not need
argparse.
"""

from __future__ import annotations

import importlib
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, NoReturn

from bruce_mp import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["create_parser", "exit_without_command"]


class _Version(Action):
    """Action that prints the version. It imports the kernels itself, because the help does not need them."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        choice = importlib.import_module("bruce_mp.kernels").CHOICE
        print(f"bruce {__version__}, {choice.sentence}")
        parser.exit()


def exit_without_command(summaries: Mapping[str, str], arguments: Sequence[str]) -> NoReturn:
    """Print the help, the version or a usage error for arguments that do not begin with a subcommand, and exit."""
    parser = create_parser(summaries)
    parser.parse_args(arguments)  # exits, except for `bruce -- COMMAND`
    parser.error("give options after the COMMAND")


def create_parser(summaries: Mapping[str, str]) -> ArgumentParser:
    """Return the parser for arguments without a subcommand; `summaries` has the help line of each subcommand."""
    width = max(map(len, summaries), default=0)
    listed = "\n".join(f"  {name:{width}}  {summary}" for name, summary in summaries.items())
    parser = ArgumentParser(
        prog="bruce",
        description="Deliver the messages of this host's programs to Kafka.",
        epilog=f"commands:\n{listed}\n\n`bruce COMMAND --help` lists the options of a command.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and which kernels are used")
    parser.add_argument("command", choices=summaries, metavar="COMMAND", help="one of the commands below")
    return parser
