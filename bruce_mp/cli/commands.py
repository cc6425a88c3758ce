"""Table of subcommands, and their entry point."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from signal import SIGINT
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bruce_mp.cli.early_signals import held_back
from bruce_mp.cli.output import while_read
from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "main"]


class Command(NamedTuple):
    """A module with `main(argv) -> int`, and its summary for the help."""

    module: str
    summary: str


COMMANDS: Final = {
    "run": Command("bruce_mp.cli.run", "run the daemon"),
    "reload": Command("bruce_mp.cli.reload", "reload the configuration of a running daemon"),
    "check-config": Command("bruce_mp.cli.check_config", "check a configuration file"),
    "import-config": Command("bruce_mp.cli.import_config", "convert a configuration of Dory or Bruce"),
    "send": Command("bruce_mp.cli.send", "send messages to a daemon"),
    "upgrade": Command("bruce_mp.cli.upgrade", "upgrade a running daemon to the installed code"),
    "status": Command("bruce_mp.cli.status", "show the state of a daemon"),
    "check": Command("bruce_mp.cli.check", "check that a daemon's books balance"),
    "monitor": Command("bruce_mp.cli.monitor", "check a daemon for Nagios: exit status 0, 1, 2 or 3"),
    "slab": Command("bruce_mp.cli.slab", "inspect a slab file, and export its messages"),
    "dev-broker": Command("bruce_mp.devbroker.process", "run an embedded Kafka broker for demos and tests"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return while_read(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        summaries = {name: command.summary for name, command in COMMANDS.items()}
        importlib.import_module("bruce_mp.cli.usage").parser(summaries).parse_args(arguments)  # parse_args exits
    with held_back() if _is_start(arguments) else nullcontext():
        return _obey(arguments)


def _is_start(arguments: Sequence[str]) -> bool:
    """Return True if the command starts a daemon; `bruce run --check` does not."""
    return arguments[0] == "run" and "--check" not in arguments


def _obey(arguments: Sequence[str]) -> int:
    command = importlib.import_module(COMMANDS[arguments[0]].module)
    try:
        return cast("Callable[[Sequence[str]], int]", command.main)(arguments[1:])
    except BruceError as error:
        sys.stderr.write(f"bruce: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + SIGINT
