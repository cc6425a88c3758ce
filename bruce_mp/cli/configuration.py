"""The configuration as the subcommands take it: a file, settings laid over it, and nothing that would be ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.config.features import unused_settings
from bruce_mp.config.load import load_config
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence
    from pathlib import Path

    from bruce_mp.config.model import Config

__all__ = ["add_overrides", "load_usable_config"]


def add_overrides(parser: ArgumentParser) -> None:
    """The option `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting laid over the file, as slab.size=64m; repeatable",
    )


def load_usable_config(path: Path, overrides: Sequence[str]) -> Config:
    """The configuration; ConfigError also for a feature that is switched on and that this version does not have."""
    config = load_config(path, overrides)
    unused = unused_settings(config)
    if unused:
        raise ConfigError(
            "\n".join(f"{path}: {setting}: this version does not have that yet; remove it." for setting in unused)
        )
    return config
