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

from bruce_mp.slab.layout import State

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRANSITIONS", "Role"]


@unique
class Role(Enum):
    """A kind of process that holds records."""

    INPUT = "input"
    ROUTER = "router"
    DISPATCHER = "dispatcher"


TRANSITIONS: Final[Mapping[State, Mapping[State, Role]]] = {
    State.OPEN: {
        State.FILLED: Role.INPUT,
        State.DELIVERED: Role.INPUT,  # a run without records that a dead input left
    },
    State.FILLED: {State.ROUTED: Role.ROUTER},
    State.ROUTED: {
        State.ROUTED: Role.ROUTER,  # taken over from its predecessor
        State.ASSIGNED: Role.ROUTER,
        State.DISCARDED: Role.ROUTER,
        State.SPLIT: Role.ROUTER,
    },
    State.ASSIGNED: {State.QUEUED: Role.DISPATCHER},
    State.QUEUED: {
        State.IN_FLIGHT: Role.DISPATCHER,
        State.RETURNED: Role.DISPATCHER,
        State.SPLIT: Role.DISPATCHER,
    },
    State.IN_FLIGHT: {
        State.DELIVERED: Role.DISPATCHER,
        State.DISCARDED: Role.DISPATCHER,
        State.RETURNED_SENT: Role.DISPATCHER,
        State.SPLIT: Role.DISPATCHER,  # the broker refused the batch as too large: it is cut
    },
    State.RETURNED: {State.ROUTED: Role.ROUTER},
    State.RETURNED_SENT: {State.ROUTED_SENT: Role.ROUTER},
    State.ROUTED_SENT: {
        State.ROUTED_SENT: Role.ROUTER,  # taken over from its predecessor
        State.ASSIGNED_SENT: Role.ROUTER,
        State.DISCARDED: Role.ROUTER,
    },
    State.ASSIGNED_SENT: {State.IN_FLIGHT: Role.DISPATCHER},
    State.DELIVERED: {},
    State.DISCARDED: {},
    State.SPLIT: {},
}
