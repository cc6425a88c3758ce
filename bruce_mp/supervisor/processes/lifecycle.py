"""Lifecycle of a process in the supervisor: a table of states and events.

A process that the daemon needs is BOOTING or RUNNING, or WAITING for its next start. A dispatcher is REPLACING if its
broker moved to another address: the old process ends, then a new one starts. The daemon does not need a process that is
STOPPING or ENDED.
"""

from __future__ import annotations

from enum import Enum, auto, unique
from typing import Final

__all__ = ["ALIVE_STATES", "TRANSITIONS", "UNWANTED_STATES", "ProcessEvent", "ProcessState"]


@unique
class ProcessState(Enum):
    WAITING = auto()
    """No process runs now; the next one starts at once or after a delay."""
    BOOTING = auto()
    RUNNING = auto()
    REPLACING = auto()
    """The supervisor has requested the exit; then a process for the broker's new address starts."""
    STOPPING = auto()
    """The supervisor has requested the exit; no process starts after it."""
    ENDED = auto()
    """No process runs, and none starts unless the router needs a dispatcher again."""


@unique
class ProcessEvent(Enum):
    SPAWNED = auto()
    READY = auto()
    """The process has sent the control message `Ready`: it has booted."""
    FINISHED = auto()
    """The process, an input, exited with code 0 after the control message `Drain`."""
    EXITED = auto()
    """The process ended in any other way, such as a crash or an exit after the control message `Stop`."""
    STOP = auto()
    """The daemon no longer needs the process."""
    REPLACE = auto()
    """The router needs a dispatcher for the broker's present address; the old process, if it runs, must end first."""


ALIVE_STATES: Final = frozenset(ProcessState) - {ProcessState.WAITING, ProcessState.ENDED}
UNWANTED_STATES: Final = frozenset({ProcessState.STOPPING, ProcessState.ENDED})

TRANSITIONS: Final[dict[ProcessState, dict[ProcessEvent, ProcessState]]] = {
    ProcessState.WAITING: {
        ProcessEvent.SPAWNED: ProcessState.BOOTING,
        ProcessEvent.EXITED: ProcessState.WAITING,  # does not occur: after a failed spawn, the state stays WAITING
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
        ProcessEvent.READY: ProcessState.RUNNING,  # no process sends Ready twice; it would be harmless
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
        ProcessEvent.REPLACE: ProcessState.REPLACING,  # needed again before the old process has ended
    },
    ProcessState.ENDED: {
        ProcessEvent.STOP: ProcessState.ENDED,
        ProcessEvent.REPLACE: ProcessState.WAITING,
    },
}
"""The next state by state and event. A missing pair is impossible; its KeyError shows a bug of the supervisor."""
