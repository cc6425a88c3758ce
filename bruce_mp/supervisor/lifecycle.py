"""The life of a process as the supervisor sees it: a table of states and events, and nothing else.

A process that is wanted is BOOTING or RUNNING, or WAITING for its next life.  A dispatcher whose broker moved to
another address is REPLACING: its old life ends, then a new one begins.  STOPPING and ENDED are what nobody wants.
"""

from __future__ import annotations

from enum import Enum, auto, unique
from typing import Final

__all__ = ["ALIVE", "TRANSITIONS", "UNWANTED", "Event", "State", "advance"]


@unique
class State(Enum):
    WAITING = auto()
    """No process; there will be one when its time has come."""
    BOOTING = auto()
    RUNNING = auto()
    REPLACING = auto()
    """Told to end, to begin anew with other particulars."""
    STOPPING = auto()
    """Told to end."""
    ENDED = auto()
    """No process."""


@unique
class Event(Enum):
    SPAWNED = auto()
    READY = auto()
    FINISHED = auto()
    """It ended as it was meant to."""
    CRASHED = auto()
    """It ended in any other way."""
    STOP = auto()
    REPLACE = auto()


ALIVE: Final = frozenset({State.BOOTING, State.RUNNING, State.REPLACING, State.STOPPING})
UNWANTED: Final = frozenset({State.STOPPING, State.ENDED})

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.WAITING: {
        Event.SPAWNED: State.BOOTING,
        Event.CRASHED: State.WAITING,  # it could not even be spawned
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
        Event.REPLACE: State.REPLACING,  # a slot that is wanted again before it was empty
    },
    State.ENDED: {
        Event.STOP: State.ENDED,
        Event.REPLACE: State.WAITING,
    },
}


def advance(state: State, event: Event) -> State:
    """The state after an event.  KeyError for an event that cannot happen in this state: a bug of the supervisor."""
    return TRANSITIONS[state][event]
