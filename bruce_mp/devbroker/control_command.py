"""`bruce dev-broker control`: send one command to a running embedded broker, and print its result as JSON.

Exit status: 0 if the command was executed, 1 if it failed or no broker answered, 2 if it is not a command.

Separate because it is a client of the broker, with its own parser.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.devbroker.arguments import parse_command
from bruce_mp.devbroker.commands import BY_NAME
from bruce_mp.devbroker.control import ControlChannel
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import BruceError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def create_parser() -> argparse.ArgumentParser:
    fields = [f"  {name} {' '.join(kind.__struct_fields__)}" for name, kind in sorted(BY_NAME.items())]
    # The first field of a fault is its action, which has a line of its own.
    faults = [f"  actions: {' '.join(FaultAction)}", f"  fields: {' '.join(Fault.__struct_fields__[1:])}"]
    options = argparse.ArgumentParser(
        prog="bruce dev-broker control",
        description="Send one command to a running embedded broker, and print its result as JSON.",
        epilog="\n".join(["commands with their fields:", *fields, "", *faults]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("address", metavar="ADDRESS", help="HOST:PORT or path, as the line CONTROL of the broker says")
    options.add_argument("command", metavar="COMMAND", help="for example inject, list_faults, move_leader")
    options.add_argument("words", nargs="*", metavar="FIELD=VALUE", help="arguments of the command")
    return options


def main(argv: Sequence[str]) -> int:
    """Send the command and return the exit status."""
    options = create_parser().parse_args(argv)
    try:
        command = parse_command([options.command, *options.words])
        channel = ControlChannel(options.address)
        try:
            result = channel.request(command)
        finally:
            channel.close()
    except BruceError as error:
        sys.stderr.write(f"bruce dev-broker control: {error}\n")
        return error.exit_code
    if result is not None:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    return ExitCode.OK
