"""`bruce send`: see `bruce_mp.client.send`, which also works without the daemon's dependencies."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from bruce_mp.client.send import add_arguments, run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(prog="bruce send", description="Send messages to a daemon.")
    add_arguments(parser)
    return run(parser.parse_args(argv))
