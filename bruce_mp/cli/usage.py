"""Help, version and usage errors of `bruce` without a subcommand.

Separate because `multiprocessing` imports `commands` again in each child process, which does not need argparse.
"""

from __future__ import annotations

import importlib
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from bruce_mp import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["parser"]


class _Version(Action):
    """Action that prints the version. It imports the kernels on demand, because the help does not need them."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        choice = importlib.import_module("bruce_mp.kernels").CHOICE
        print(f"bruce {__version__}, {choice.sentence}")
        parser.exit()


def parser(summaries: Mapping[str, str]) -> ArgumentParser:
    """Return the parser of the arguments before a subcommand; `summaries` has a line for each subcommand."""
    listed = "\n".join(f"  {name:14}{summary}" for name, summary in summaries.items())
    options = ArgumentParser(
        prog="bruce",
        description="Deliver the messages of this host's programs to Kafka.",
        epilog=f"commands:\n{listed}\n\n`bruce COMMAND --help` lists its options.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    options.add_argument("--version", action=_Version, nargs=0, help="show the version, and which kernels are used")
    options.add_argument("command", choices=summaries, metavar="COMMAND", help="what to do")
    return options
