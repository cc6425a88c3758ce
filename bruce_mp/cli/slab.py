"""`bruce slab`: inspect a slab file and export its messages.

Neither subcommand writes to the slab. Both read the intact parts of a damaged slab and report the damage.

Exit status: 0, or 1 if a part of the file is damaged, or if an export omits messages in spill files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.slab_export import ExportOptions, export
from bruce_mp.cli.slab_inspect import inspect
from bruce_mp.errors import SlabError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    args = _create_parser().parse_args(argv)
    path: Path = args.file
    try:
        if path.exists() and not path.is_file():
            raise SlabError(f"{path} is not a file; give the slab's own path.")
    except OSError as error:
        raise SlabError(
            f"{path}: {error.strerror}. Correct the path, or run the command as the daemon's user."
        ) from error
    if args.command == "inspect":
        return inspect(path, as_json=args.json)
    topics = frozenset(args.topic)
    return export(ExportOptions(path, args.output, topics, includes_settled=args.all, ignores_lock=args.force))


def _create_parser() -> ArgumentParser:
    parser = command_parser("slab", "Inspect a slab file, and export its messages.", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect_parser = commands.add_parser(
        "inspect",
        help="summarize a slab",
        description="Summarize a slab file, and report damage.",
        epilog=parser.epilog,
    )
    export_parser = commands.add_parser(
        "export",
        help="write the messages of a slab to a file",
        description="Write the messages that a slab holds as lines of a discard file, in order of arrival.",
        epilog=parser.epilog,
    )
    for subparser in (inspect_parser, export_parser):
        subparser.add_argument("file", type=Path, metavar="FILE", help="the slab file")
    inspect_parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add = export_parser.add_argument
    add("--output", default="-", metavar="OUT", help="a new file for the lines; - is standard output, the default")
    add("--topic", action="append", default=[], metavar="TOPIC", help="export only messages of this topic; repeatable")
    help_of_all = "export delivered and discarded messages, too, if their bytes are still present"
    add("--all", action="store_true", help=help_of_all)
    add("--force", action="store_true", help="export even the slab of a running daemon")
    return parser
