"""The life of a run or a record as a table: from which state to which, and who may store it.

    OPEN -> FILLED -> ROUTED -> ASSIGNED -> QUEUED -> IN_FLIGHT -> DELIVERED

is the way of a message that nothing happens to.  A dispatcher that has to give up what it holds RETURNs it: what it
never sent goes on as ROUTED, what it built into a record batch as ROUTED_SENT, ASSIGNED_SENT and IN_FLIGHT again, with
partition, sequence numbers and boundaries kept.  DISCARDED ends the life like DELIVERED.  A run that becomes SPLIT has
no life of its own any more: its records go on, each from the state that the run was in.

A state names one process that may store the next, so no word ever has two writers.  A process that restarts finds what
it held by its state and holder; a router has a new incarnation and stores the same state again with that.
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
