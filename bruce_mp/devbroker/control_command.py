"""`bruce dev-broker control`: send one command to a running embedded broker, and print its result as JSON.

Exit status: 0 if the command was executed, 1 if it failed or no broker answered, 2 if there is no such command.

Separate because it is a client with its own parser, while `process`, its only user, runs the broker.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.devbroker.arguments import parse_command
from bruce_mp.devbroker.commands import COMMANDS_BY_NAME
from bruce_mp.devbroker.control import ControlChannel
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import BruceError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def create_parser() -> argparse.ArgumentParser:
    commands = [f"  {name} {' '.join(kind.__struct_fields__)}" for name, kind in sorted(COMMANDS_BY_NAME.items())]
    fault_fields = Fault.__struct_fields__[1:]  # all but `action`, because a separate line lists its values
    faults = [f"  actions: {' '.join(FaultAction)}", f"  fields: {' '.join(fault_fields)}"]
    options = argparse.ArgumentParser(
        prog="bruce dev-broker control",
        description="Send one command to a running embedded broker, and print its result as JSON.",
        epilog="\n".join(["commands with their fields:", *commands, "", "faults, for inject:", *faults]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("address", metavar="ADDRESS", help="HOST:PORT or path, which the broker prints after CONTROL")
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
