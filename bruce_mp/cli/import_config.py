"""`bruce import-config`: convert the configuration of a Dory or Bruce daemon to TOML.

The TOML goes to standard output, with a comment for each difference and for each option without a counterpart.

Exit status: 0, or 1 with error messages and without output if the old configuration is invalid.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.importing.command_line import CONFIG_PATH, parse_options
from bruce_mp.cli.importing.convert import convert
from bruce_mp.cli.options import command_parser
from bruce_mp.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    parser = command_parser("import-config", "Convert a configuration of Dory or Bruce, and print it as TOML.", __doc__)
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the XML file of the old configuration")
    help_text = "options of the old daemon's command line, as one quoted argument; FILE defaults to its --config_path"
    parser.add_argument("--command-line", metavar="OPTIONS", help=help_text)
    args = parser.parse_args(argv)
    options = None if args.command_line is None else parse_options(args.command_line)
    file: Path | None = args.file
    if file is None and options is not None and (config_path := options.get(CONFIG_PATH)):
        file = Path(config_path)
    if file is None:
        parser.error("give FILE, or a --command-line with --config_path")
    sys.stdout.write(convert(_read(file), str(file), options))
    return ExitCode.OK


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: the old configuration cannot be read: {error.strerror}.") from error
