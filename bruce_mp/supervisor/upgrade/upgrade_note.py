"""Progress of an upgrade, in a file of the run directory that the supervisor writes and `bruce upgrade` reads.

A file is used because the new code does not keep the connections of the old code.
"""

from __future__ import annotations

import logging
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UpgradeNote", "UpgradeStage", "read_note", "write_note"]

_NOTE_FILE: Final = "upgrade"

log = logging.getLogger(__name__)


@unique
class UpgradeStage(StrEnum):
    CHECKING = "checking"
    DRAINING = "draining"
    """The new code cannot adopt this slab, so the daemon first delivers all messages."""
    TAKING_OVER = "taking over"
    REFUSED = "refused"
    DONE = "done"


class UpgradeNote(msgspec.Struct, frozen=True):
    """Stage of the upgrade with this number, from version `old` to version `new`.

    `new` is empty until the check has reported it. `reason` is set in stage REFUSED. In stage DONE, `waited_ms` is the
    time for which messages waited in the sockets because no input ran, and `package` is the directory of the new code.
    """

    number: int
    stage: UpgradeStage
    old: str
    new: str = ""
    reason: str = ""
    waited_ms: int = 0
    package: str = ""


def read_note(run_dir: Path) -> UpgradeNote | None:
    """Return the note of the last upgrade, or None if there is no readable one."""
    try:
        return msgspec.json.decode((run_dir / _NOTE_FILE).read_bytes(), type=UpgradeNote)
    except (OSError, msgspec.DecodeError):
        return None


def write_note(run_dir: Path, note: UpgradeNote) -> bool:
    """Replace the note atomically. If that fails, log the error and return False."""
    draft = run_dir / f"{_NOTE_FILE}.new"
    try:
        draft.write_bytes(msgspec.json.encode(note))
        draft.rename(run_dir / _NOTE_FILE)
    except OSError as error:
        log.error("The state of the upgrade cannot be written to %s: %s.", run_dir, error.strerror)
        return False
    return True
