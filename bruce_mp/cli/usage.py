"""What `bruce` says where no subcommand is named: help, version, or what is wrong.

It is apart from `commands`, which each process of the daemon loads when the daemon was started as `bruce`:
`multiprocessing` imports the program of the parent in the child.
"""

from __future__ import annotations

import importlib
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter

from bruce_mp import __version__
from bruce_mp.cli.commands import COMMANDS

__all__ = ["parser"]


class _Version(Action):
    """Prints the version.  It looks for the kernels only when it is asked: the help has no use for them."""

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
