"""`bruce upgrade`: upgrade a running daemon to the installed code without stopping it, and reload its configuration.

Exit status: 0 if the new code receives messages, 1 if the daemon refuses the upgrade, runs another version than this
command, or has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bruce_mp import __version__
from bruce_mp.cli.options import command_parser, seconds_from
from bruce_mp.config.load import load_config
from bruce_mp.errors import BruceError, ExitCode
from bruce_mp.supervisor.run_dir import running_daemon
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeStage, read_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote

__all__ = ["main"]

_TIMEOUT_S: Final = 120.0
"""The daemon's time limit for the check of the new code, plus that for the start of its processes, plus a margin."""
_POLL_INTERVAL_S: Final = 0.02


class UpgradeError(BruceError):
    """An upgrade that was refused, has no known outcome, or led to another version than this command's.

    The daemon may have ended.
    """


def main(argv: Sequence[str]) -> int:
    parser = command_parser(
        "upgrade",
        "Upgrade a running daemon to the installed code without stopping it, and reload its configuration.",
        __doc__,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the daemon's configuration file")
    help_text = f"longest wait for the outcome, in seconds (default {_TIMEOUT_S:g})"
    parser.add_argument("--timeout", type=seconds_from(0), default=_TIMEOUT_S, metavar="S", help=help_text)
    args = parser.parse_args(argv)
    note = _upgrade(Path(load_config(args.config).daemon.run_dir), args.timeout)
    if note.new != __version__:
        raise UpgradeError(_other_version(note))
    print(
        f"bruce {note.old} -> {note.new}: nothing was received for {note.waited_ms} ms; messages waited in the sockets."
    )
    return ExitCode.OK


def _upgrade(run_dir: Path, timeout_s: float) -> UpgradeNote:
    """Signal the daemon of a run directory, and return its note about the completed upgrade. Raise UpgradeError."""
    pid = running_daemon(run_dir)
    if pid is None:
        raise UpgradeError(f"No daemon uses the run directory {run_dir}. Start one; it runs the installed version.")
    previous_note = read_note(run_dir)
    try:
        os.kill(pid, signal.SIGUSR2)
    except ProcessLookupError as error:
        raise UpgradeError(
            f"Process {pid}, the daemon, has just ended. Start it; it runs the installed version."
        ) from error
    except PermissionError as error:
        raise UpgradeError(
            f"Process {pid} belongs to another user: run this as the daemon's user, or as root."
        ) from error
    for note in _new_notes(run_dir, pid, previous_note, time.monotonic() + timeout_s):
        match note.stage:
            case UpgradeStage.DONE:
                return note
            case UpgradeStage.REFUSED:
                raise UpgradeError(f"bruce {note.old} keeps running: {note.reason}")
            case UpgradeStage.DRAINING:
                sys.stderr.write("The new code cannot adopt this slab: the daemon first delivers the held messages.\n")
    raise UpgradeError("The daemon has not reported the outcome of the upgrade in time; see its log.")


def _other_version(note: UpgradeNote) -> str:
    """Return the error text for a daemon that runs from another installation than this command."""
    word = "still" if note.new == note.old else "now"
    place = f" from {note.package}" if note.package else ""  # notes of old versions lack the package
    return (
        f"The daemon {word} runs bruce {note.new}{place}, and this command is {__version__}. Restart the daemon, such "
        f"as with systemctl restart bruce or supervisorctl restart bruce. If it then runs {note.new}, its service "
        "manager starts another installation: correct the path."
    )


def _new_notes(run_dir: Path, pid: int, previous_note: UpgradeNote | None, deadline: float) -> Iterator[UpgradeNote]:
    """Yield the notes about upgrades after the one in `previous_note`, until `deadline` (monotonic clock).

    If that upgrade has no outcome yet, the daemon continues it at a second request: yield its further notes, too. Raise
    UpgradeError if the supervisor `pid` ends.
    """
    last_note, first_number = previous_note, 0
    if previous_note is not None:
        first_number = previous_note.number + (previous_note.stage in {UpgradeStage.DONE, UpgradeStage.REFUSED})
    while time.monotonic() < deadline:
        is_alive = psutil.pid_exists(pid)  # checked before the read: a supervisor may write a last note and end
        note = read_note(run_dir)
        if note is not None and note != last_note and note.number >= first_number:
            yield note
        if not is_alive:
            raise UpgradeError(
                "The daemon ended during the upgrade; its log says why. Undelivered messages are in its slab."
            )
        last_note = note
        time.sleep(_POLL_INTERVAL_S)
