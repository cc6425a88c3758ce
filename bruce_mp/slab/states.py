"""The state machine of runs and records: the transitions, and the process that may store each.

    OPEN -> FILLED -> ROUTED -> ASSIGNED -> QUEUED -> IN_FLIGHT -> DELIVERED

is the path of an ordinary message.  A dispatcher that stops sending returns its messages to the router.  Those in no
record batch yet become RETURNED and then ROUTED again.  Those in a built one, sent or not, pass through RETURNED_SENT,
ROUTED_SENT, ASSIGNED_SENT and IN_FLIGHT, and keep partition, sequence numbers and batch boundaries.  DELIVERED and
DISCARDED are final.  SPLIT is final for the run: each of its records continues from the state that the run had.

In each state one process may store the next state, so no state word has two writers.  A restarted process finds its
records by state and holder.  A restarted router stores the same state again, with its new incarnation as the holder.

No process reads `TRANSITIONS`: tests of the processes check their stores against it, and `scripts/draw_states.py` draws
it.
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
        RunState.DELIVERED: Role.INPUT,  # an empty run of a dead predecessor
        RunState.DISCARDED: Role.INPUT,  # of a fenced attempt that does not complete
    },
    RunState.FILLED: {RunState.ROUTED: Role.ROUTER},
    RunState.ROUTED: {
        RunState.ROUTED: Role.ROUTER,  # claimed from the predecessor
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
        RunState.SPLIT: Role.DISPATCHER,  # the broker refused the batch as too large
    },
    RunState.RETURNED: {RunState.ROUTED: Role.ROUTER},
    RunState.RETURNED_SENT: {RunState.ROUTED_SENT: Role.ROUTER},
    RunState.ROUTED_SENT: {
        RunState.ROUTED_SENT: Role.ROUTER,  # claimed from the predecessor
        RunState.ASSIGNED_SENT: Role.ROUTER,
        RunState.DISCARDED: Role.ROUTER,
    },
    RunState.ASSIGNED_SENT: {RunState.IN_FLIGHT: Role.DISPATCHER},
    RunState.DELIVERED: {},
    RunState.DISCARDED: {},
    RunState.SPLIT: {},
}
