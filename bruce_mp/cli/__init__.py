"""The command `bruce`.

Each subcommand is a module with `main(argv) -> int`, imported when it is asked for: `bruce send` in a loop must not
pay for Flask, and the daemon's supervisor should not carry what it never uses.

Errors that we raise on purpose end here: their sentence goes to standard error, their code is the exit status.
"""

from bruce_mp.cli.commands import main

__all__ = ["main"]
