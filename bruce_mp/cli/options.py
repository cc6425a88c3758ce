"""Command-line options that several subcommands share."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

__all__ = ["add_overrides", "seconds_from"]


def add_overrides(parser: ArgumentParser) -> None:
    """Add the option `--set`, for settings that override the configuration file."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting that overrides the file, such as slab.size=64m; repeatable",
    )


def seconds_from(low: float) -> Callable[[str], float]:
    """Return an argument type for a finite number of seconds from `low`."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not low <= seconds < math.inf:  # a NaN fails, too
            raise ArgumentTypeError(f"{text} is not a number of seconds from {low:g}")
        return seconds

    return parse
