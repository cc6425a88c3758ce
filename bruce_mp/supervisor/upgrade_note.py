"""How an upgrade goes, in a file of the run directory: written by the supervisor, read by `bruce upgrade`.

The code that begins an upgrade is not the one that ends it, so that no connection could tell.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Stage", "UpgradeNote", "read_note", "write_note"]

_NAME: Final = "upgrade"


@unique
class Stage(StrEnum):
    CHECKING = "checking"
    DRAINING = "draining"
    """The new code cannot go on with this slab: it is emptied first."""
    TAKING_OVER = "taking over"
    REFUSED = "refused"
    DONE = "done"


class UpgradeNote(msgspec.Struct, frozen=True):
    """How far the upgrade with this number is.  `waited_ms`: how long nothing was received, once it is DONE."""

    number: int
    stage: Stage
    old: str
    new: str = ""
    reason: str = ""
    waited_ms: int = 0


def read_note(run_dir: Path) -> UpgradeNote | None:
    """The last upgrade's note; None when there was none, or none that we understand."""
    try:
        return msgspec.json.decode((run_dir / _NAME).read_bytes(), type=UpgradeNote)
    except (OSError, msgspec.DecodeError):
        return None


def write_note(run_dir: Path, note: UpgradeNote) -> None:
    """Replace the note, whole or not at all."""
    draft = run_dir / f"{_NAME}.new"
    draft.write_bytes(msgspec.json.encode(note))
    draft.rename(run_dir / _NAME)
