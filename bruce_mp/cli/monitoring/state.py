"""State file of `bruce monitor`: the counters that the last run read.

The file is replaced atomically: a killed run leaves the previous file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from bruce_mp.cli.monitoring.readings import Readings

__all__ = ["MonitorState", "StateError", "load_state", "save_state"]


class StateError(BruceError):
    """Failure to read or write the state file."""


class MonitorState(msgspec.Struct, frozen=True):
    """The counters as of `now`, in seconds since the epoch."""

    now: int
    counters: dict[str, int]

    def increase_of(self, counters: dict[str, int], name: str) -> int:
        """Return the increase of a counter. A decreased counter restarted from 0 with a new slab."""
        value, before = counters.get(name, 0), self.counters.get(name, 0)
        return value if value < before else value - before


def load_state(path: Path) -> MonitorState | None:
    """Read the state file; return None without one. Raise StateError for an unreadable file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MonitorState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"The state file {path} cannot be read: {error.strerror}. Give the monitor's user the right to it, or give "
            "another --state."
        ) from error
    except msgspec.DecodeError as error:
        raise StateError(f"{path} is not a state file of bruce monitor. Remove it, or give another --state.") from error


def save_state(path: Path, readings: Readings) -> None:
    """Replace the state file. Raise StateError."""
    state = MonitorState(readings.held.now, readings.counters)
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
