"""The state machine of runs and records: the transitions, and the process that may store each.

    OPEN -> FILLED -> ROUTED -> ASSIGNED -> QUEUED -> IN_FLIGHT -> DELIVERED

is the path of an ordinary message.  A dispatcher that gives up its messages returns them.  Messages that it never sent
go on as ROUTED.  Those in a record batch that was built go through ROUTED_SENT, ASSIGNED_SENT and IN_FLIGHT again, with
partition, sequence numbers and boundaries kept.  DISCARDED is final, as DELIVERED is.  A SPLIT run is final too: its
records go on separately, each from the state that the run was in.

Each state names the one process that may store the next, so no state word has two writers.  A restarted process finds
its records by their state and holder.  A router has a new incarnation, with which it stores the same state again.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRANSITIONS", "Role"]


@unique
class Role(Enum):
    """A kind of process that holds records."""

    INPUT = "input"
    ROUTER = "router"
    DISPATCHER = "dispatcher"


TRANSITIONS: Final[Mapping[RunState, Mapping[RunState, Role]]] = {
    RunState.OPEN: {
        RunState.FILLED: Role.INPUT,
        RunState.DELIVERED: Role.INPUT,  # a run without records that a dead input left
    },
    RunState.FILLED: {RunState.ROUTED: Role.ROUTER},
    RunState.ROUTED: {
        RunState.ROUTED: Role.ROUTER,  # taken over from its predecessor
        RunState.ASSIGNED: Role.ROUTER,
        RunState.DISCARDED: Role.ROUTER,
        RunState.SPLIT: Role.ROUTER,
    },
    RunState.ASSIGNED: {RunState.QUEUED: Role.DISPATCHER},
    RunState.QUEUED: {
        RunState.IN_FLIGHT: Role.DISPATCHER,
        RunState.RETURNED: Role.DISPATCHER,
        RunState.SPLIT: Role.DISPATCHER,
    },
    RunState.IN_FLIGHT: {
        RunState.DELIVERED: Role.DISPATCHER,
        RunState.DISCARDED: Role.DISPATCHER,
        RunState.RETURNED_SENT: Role.DISPATCHER,
        RunState.SPLIT: Role.DISPATCHER,  # the broker refused the batch as too large: it is cut
    },
    RunState.RETURNED: {RunState.ROUTED: Role.ROUTER},
    RunState.RETURNED_SENT: {RunState.ROUTED_SENT: Role.ROUTER},
    RunState.ROUTED_SENT: {
        RunState.ROUTED_SENT: Role.ROUTER,  # taken over from its predecessor
        RunState.ASSIGNED_SENT: Role.ROUTER,
        RunState.DISCARDED: Role.ROUTER,
    },
    RunState.ASSIGNED_SENT: {RunState.IN_FLIGHT: Role.DISPATCHER},
    RunState.DELIVERED: {},
    RunState.DISCARDED: {},
    RunState.SPLIT: {},
}
