"""State file of `bruce monitor`: the counters that it read last.

The command replaces the file atomically, so a kill leaves the previous one.
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
    """The counters at the time `now`, in seconds since the epoch."""

    now: int
    counters: dict[str, int]

    def increase_of(self, counters: dict[str, int], name: str) -> int:
        """Return the increase of a counter from this state to `counters`."""
        count, before = counters.get(name, 0), self.counters.get(name, 0)
        return count if count < before else count - before  # with a new slab, a counter begins at 0 again


def load_state(path: Path) -> MonitorState | None:
    """Read the state file, or return None if there is none. Raise StateError for an unreadable file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MonitorState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"The state file {path} cannot be read: {error.strerror}. Allow the monitor's user to read it, or give "
            "another --state."
        ) from error
    except msgspec.DecodeError as error:
        raise StateError(f"{path} is not a state file of bruce monitor. Remove it, or give another --state.") from error


def save_state(path: Path, readings: Readings) -> None:
    """Replace the state file. Raise StateError."""
    state = MonitorState(readings.held.now, readings.counters)
    temporary = Path(f"{path}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(state))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StateError(
            f"The state file {path} cannot be written: {error.strerror}. Allow the monitor's user to write to its "
            "directory, or give another --state."
        ) from error
