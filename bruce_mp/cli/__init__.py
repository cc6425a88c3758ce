"""The command `bruce`.

Each subcommand is a module with `main(argv) -> int`. `commands` imports only the module of the given subcommand: a
script that runs `bruce send` in a loop must not wait for the import of Flask each time, and unused modules would cost
the supervisor memory.
"""

from bruce_mp.cli.commands import main

__all__ = ["main"]
