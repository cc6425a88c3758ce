"""Command-line option for settings that override the configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["add_overrides"]


def add_overrides(parser: ArgumentParser) -> None:
    """Add the option `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting that overrides the file, as slab.size=64m; repeatable",
    )
