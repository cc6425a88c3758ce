"""Help, version and usage errors of `bruce` without a subcommand.

This is separate from `commands`, which `multiprocessing` imports in each child process as the parent's program.
"""

from __future__ import annotations

import importlib
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter

from bruce_mp import __version__
from bruce_mp.cli.commands import COMMANDS

__all__ = ["parser"]


class _Version(Action):
    """Action that prints the version. It imports the kernels on demand, because the help does not need them."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        choice = importlib.import_module("bruce_mp.kernels").CHOICE
        print(f"bruce {__version__}, {choice.sentence}")
        parser.exit()


def parser() -> ArgumentParser:
    """The parser of everything before a subcommand."""
    summaries = "\n".join(f"  {name:14}{command.summary}" for name, command in COMMANDS.items())
    words = ArgumentParser(
        prog="bruce",
        description="A host's daemon for Kafka.",
        epilog=f"commands:\n{summaries}\n\n`bruce COMMAND --help` tells more.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    words.add_argument("--version", action=_Version, nargs=0, help="show the version, and which kernels are used")
    words.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do")
    return words
