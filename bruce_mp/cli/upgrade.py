"""`bruce upgrade`: upgrade a running daemon to the installed code without stopping it, and reload its configuration.

Exit status: 0 if the new code receives messages, 1 if the daemon continues with the old code or has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.config.load import load_config
from bruce_mp.errors import BruceError, ExitCode
from bruce_mp.supervisor.run_dir import running_daemon
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeStage, read_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote

__all__ = ["main"]

_TIMEOUT_S: Final = 120.0
"""The check of the new code and the start of its processes, each with its own limit, and a margin."""
_POLL_INTERVAL_S: Final = 0.02


class UpgradeError(BruceError):
    """Failure of an upgrade; the daemon may have ended."""


def main(argv: Sequence[str]) -> int:
    """Request the upgrade and wait for its outcome."""
    parser = ArgumentParser(prog="bruce upgrade", description="Upgrade a running daemon to the installed code.")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="its configuration")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT_S, metavar="S", help=f"longest wait (default {_TIMEOUT_S:g} s)"
    )
    args = parser.parse_args(argv)
    note = _upgrade(Path(load_config(args.config).daemon.run_dir), args.timeout)
    print(
        f"bruce {note.old} -> {note.new}: nothing was received for {note.waited_ms} ms; messages waited in the sockets."
    )
    return ExitCode.OK


def _upgrade(run_dir: Path, timeout_s: float) -> UpgradeNote:
    """Signal the daemon of a run directory and wait for the outcome. Raise UpgradeError."""
    pid = running_daemon(run_dir)
    if pid is None:
        raise UpgradeError(f"No daemon uses the run directory {run_dir}. Start one; it runs the installed version.")
    before = read_note(run_dir)
    try:
        os.kill(pid, signal.SIGUSR2)
    except PermissionError as error:
        raise UpgradeError(
            f"Process {pid} belongs to another user: run this as the daemon's user, or as root."
        ) from error
    for note in _notes(run_dir, pid, time.monotonic() + timeout_s):
        if note.number > (before.number if before else 0) and _is_done(note):
            return note
    raise UpgradeError("The daemon has not reported the outcome of the upgrade in time; see its log.")


def _notes(run_dir: Path, pid: int, deadline: float) -> Iterator[UpgradeNote]:
    """Yield each new note until the deadline. Raise UpgradeError if the supervisor ends."""
    last = None
    while time.monotonic() < deadline:
        is_alive = _is_alive(pid)
        note = read_note(run_dir)
        if note is not None and note != last:
            yield note
        if not is_alive:
            raise UpgradeError(
                "The daemon ended during the upgrade; its log says why. Undelivered messages are in its slab."
            )
        last = note
        time.sleep(_POLL_INTERVAL_S)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_done(note: UpgradeNote) -> bool:
    """Return True after a complete upgrade. Raise UpgradeError for a refused one."""
    if note.stage is UpgradeStage.REFUSED:
        raise UpgradeError(f"bruce {note.old} keeps running: {note.reason}")
    if note.stage is UpgradeStage.DRAINING:
        sys.stderr.write("The new version cannot adopt this slab: the daemon first delivers the held messages.\n")
    return note.stage is UpgradeStage.DONE
