"""`bruce import-config`: convert the configuration of a Dory or Bruce daemon to TOML.

The result goes to standard output, with a comment for each difference and for each option without a counterpart.

Exit status: 0, or 1 if the old configuration is invalid. An invalid one produces error messages and no output.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.importing.command_line import CONFIG_PATH, parse_options
from bruce_mp.cli.importing.convert import convert
from bruce_mp.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(prog="bruce import-config", description="Convert a configuration of Dory or Bruce.")
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the XML file")
    parser.add_argument(
        "--command-line",
        metavar="OPTIONS",
        help="the old daemon's command line, quoted, if it had options; --config_path in it stands for FILE",
    )
    args = parser.parse_args(argv)
    options = None if args.command_line is None else parse_options(args.command_line)
    file = args.file or Path((options or {}).get(CONFIG_PATH) or "")
    if file == Path():
        parser.error("give FILE, or a --command-line with --config_path")
    sys.stdout.write(convert(_read(file), str(file), options))
    return ExitCode.OK


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot read it: {error.strerror}.") from error
