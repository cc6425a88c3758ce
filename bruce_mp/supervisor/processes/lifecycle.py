"""Lifecycle of a process in the supervisor: a table of states and events.

A wanted process is BOOTING or RUNNING, or WAITING for its next start. A dispatcher is REPLACING if its broker moved to
another address: the old process ends, then a new one starts. A process that is STOPPING or ENDED is not wanted.
"""

from __future__ import annotations

from enum import Enum, auto, unique
from typing import Final

__all__ = ["ALIVE", "TRANSITIONS", "UNWANTED", "ProcessEvent", "ProcessState"]


@unique
class ProcessState(Enum):
    WAITING = auto()
    """No process runs, and one starts after a delay."""
    BOOTING = auto()
    RUNNING = auto()
    REPLACING = auto()
    """The supervisor has requested the exit; a process for another broker address starts after it."""
    STOPPING = auto()
    """The supervisor has requested the exit."""
    ENDED = auto()
    """No process runs, and none starts."""


@unique
class ProcessEvent(Enum):
    SPAWNED = auto()
    READY = auto()
    FINISHED = auto()
    """The process exited with code 0 after the control message `Drain`, which ends some kinds of process."""
    EXITED = auto()
    """The process ended in any other way, be it a crash or an exit after Stop."""
    STOP = auto()
    REPLACE = auto()
    """The router wants a new process for the slot's present broker address; an old one, if any, must end first."""


ALIVE: Final = frozenset({ProcessState.BOOTING, ProcessState.RUNNING, ProcessState.REPLACING, ProcessState.STOPPING})
UNWANTED: Final = frozenset({ProcessState.STOPPING, ProcessState.ENDED})

TRANSITIONS: Final[dict[ProcessState, dict[ProcessEvent, ProcessState]]] = {
    ProcessState.WAITING: {
        ProcessEvent.SPAWNED: ProcessState.BOOTING,
        ProcessEvent.EXITED: ProcessState.WAITING,  # never sent: after a failed spawn, the state stays WAITING
        ProcessEvent.STOP: ProcessState.ENDED,
        ProcessEvent.REPLACE: ProcessState.WAITING,
    },
    ProcessState.BOOTING: {
        ProcessEvent.READY: ProcessState.RUNNING,
        ProcessEvent.FINISHED: ProcessState.ENDED,
        ProcessEvent.EXITED: ProcessState.WAITING,
        ProcessEvent.STOP: ProcessState.STOPPING,
        ProcessEvent.REPLACE: ProcessState.REPLACING,
    },
    ProcessState.RUNNING: {
        ProcessEvent.READY: ProcessState.RUNNING,  # no process sends it twice; a second one would be harmless
        ProcessEvent.FINISHED: ProcessState.ENDED,
        ProcessEvent.EXITED: ProcessState.WAITING,
        ProcessEvent.STOP: ProcessState.STOPPING,
        ProcessEvent.REPLACE: ProcessState.REPLACING,
    },
    ProcessState.REPLACING: {
        ProcessEvent.READY: ProcessState.REPLACING,
        ProcessEvent.FINISHED: ProcessState.WAITING,
        ProcessEvent.EXITED: ProcessState.WAITING,
        ProcessEvent.STOP: ProcessState.STOPPING,
        ProcessEvent.REPLACE: ProcessState.REPLACING,
    },
    ProcessState.STOPPING: {
        ProcessEvent.READY: ProcessState.STOPPING,
        ProcessEvent.FINISHED: ProcessState.ENDED,
        ProcessEvent.EXITED: ProcessState.ENDED,
        ProcessEvent.STOP: ProcessState.STOPPING,
        ProcessEvent.REPLACE: ProcessState.REPLACING,  # the router wants the slot again before its process has ended
    },
    ProcessState.ENDED: {
        ProcessEvent.STOP: ProcessState.ENDED,
        ProcessEvent.REPLACE: ProcessState.WAITING,
    },
}
"""A KeyError, for an event that is impossible in a state, is a bug of the supervisor."""
