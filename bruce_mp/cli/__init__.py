"""The command `bruce`.

Each subcommand is a module with `main(argv) -> int`. It is imported on demand: a script that runs `bruce send` in a
loop must not wait for the import of Flask each time, and unused modules would cost the supervisor memory.

The `main` of this package writes the text of a `BruceError` to standard error, and returns its `exit_code`.
"""

from bruce_mp.cli.commands import main

__all__ = ["main"]
