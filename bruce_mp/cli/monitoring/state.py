"""What the last check saw, in a file: the counters of one daemon, and the life of the daemon that they are from.

The file is replaced as a whole: a check that is killed leaves the one before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from bruce_mp.cli.monitoring.readings import Readings

__all__ = ["State", "StateError", "load_state", "save_state"]


class StateError(BruceError):
    """The state file cannot be used."""


class State(msgspec.Struct, frozen=True):
    """The counters as of `now`, in seconds since the epoch."""

    now: int
    counters: dict[str, int]

    def rise(self, counters: dict[str, int], name: str) -> int:
        """By how much a counter rose.  One that fell began anew with a new slab: then all of it is new."""
        value, before = counters.get(name, 0), self.counters.get(name, 0)
        return value if value < before else value - before


def load_state(path: Path) -> State | None:
    """What the last check saw; None if there was none.  Raises StateError for a file that is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"The state file {path} cannot be read: {error.strerror}. Give the monitor's user the right to it, or give "
            "another --state."
        ) from error
    except msgspec.DecodeError as error:
        raise StateError(
            f"{path} is no state file of bruce monitor ({error}). Remove it, or give another --state."
        ) from error


def save_state(path: Path, readings: Readings) -> None:
    """Replace what the last check saw.  Raises StateError."""
    state = State(readings.held.now, readings.counters)
    new = Path(f"{path}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(state))
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StateError(
            f"The state file {path} cannot be written: {error.strerror}. Give the monitor's user the right to its "
            "directory, or give another --state."
        ) from error
