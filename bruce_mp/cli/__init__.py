"""The command `bruce`.

Each subcommand is a module with `main(argv) -> int`, imported on demand: `bruce send` in a loop must not import Flask,
and the daemon's supervisor should not hold unused modules.

Errors of class `BruceError` end here: their text goes to standard error, their code is the exit status.
"""

from bruce_mp.cli.commands import main

__all__ = ["main"]
