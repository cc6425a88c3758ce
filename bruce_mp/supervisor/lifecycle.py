"""Lifecycle of a process in the supervisor: a table of states and events.

A wanted process is BOOTING or RUNNING, or WAITING for its next life. A dispatcher is REPLACING if its broker moved to
another address: the old life ends, then a new one begins. A process that is STOPPING or ENDED is not wanted.
"""

from __future__ import annotations

from enum import Enum, auto, unique
from typing import Final

__all__ = ["ALIVE", "TRANSITIONS", "UNWANTED", "Event", "State", "advance"]


@unique
class State(Enum):
    WAITING = auto()
    """No process, but one is due to start."""
    BOOTING = auto()
    RUNNING = auto()
    REPLACING = auto()
    """Requested to end, and to restart with another configuration."""
    STOPPING = auto()
    """Requested to end."""
    ENDED = auto()
    """No process, and none is due."""


@unique
class Event(Enum):
    SPAWNED = auto()
    READY = auto()
    FINISHED = auto()
    """Regular end."""
    CRASHED = auto()
    """Any other end."""
    STOP = auto()
    REPLACE = auto()


ALIVE: Final = frozenset({State.BOOTING, State.RUNNING, State.REPLACING, State.STOPPING})
UNWANTED: Final = frozenset({State.STOPPING, State.ENDED})

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.WAITING: {
        Event.SPAWNED: State.BOOTING,
        Event.CRASHED: State.WAITING,  # the spawn itself failed
        Event.STOP: State.ENDED,
        Event.REPLACE: State.WAITING,
    },
    State.BOOTING: {
        Event.READY: State.RUNNING,
        Event.FINISHED: State.ENDED,
        Event.CRASHED: State.WAITING,
        Event.STOP: State.STOPPING,
        Event.REPLACE: State.REPLACING,
    },
    State.RUNNING: {
        Event.READY: State.RUNNING,
        Event.FINISHED: State.ENDED,
        Event.CRASHED: State.WAITING,
        Event.STOP: State.STOPPING,
        Event.REPLACE: State.REPLACING,
    },
    State.REPLACING: {
        Event.READY: State.REPLACING,
        Event.FINISHED: State.WAITING,
        Event.CRASHED: State.WAITING,
        Event.STOP: State.STOPPING,
        Event.REPLACE: State.REPLACING,
    },
    State.STOPPING: {
        Event.READY: State.STOPPING,
        Event.FINISHED: State.ENDED,
        Event.CRASHED: State.ENDED,
        Event.STOP: State.STOPPING,
        Event.REPLACE: State.REPLACING,  # a slot is wanted again before its process ended
    },
    State.ENDED: {
        Event.STOP: State.ENDED,
        Event.REPLACE: State.WAITING,
    },
}


def advance(state: State, event: Event) -> State:
    """Return the state after an event. KeyError for an impossible event means a bug of the supervisor."""
    return TRANSITIONS[state][event]
