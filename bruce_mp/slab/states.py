"""The state machine of runs and records: the transitions, and the process that may store each.

    OPEN -> FILLED -> ROUTED -> ASSIGNED -> QUEUED -> IN_FLIGHT -> DELIVERED

is the path of an ordinary message.  A dispatcher that stops sending returns its messages to the router.  Messages that
are in no record batch yet become RETURNED and then ROUTED again.  Messages in a batch that was built, sent or not, pass
through RETURNED_SENT, ROUTED_SENT, ASSIGNED_SENT and IN_FLIGHT, and keep partition, sequence numbers and batch
boundaries.  DELIVERED and DISCARDED are final.  SPLIT is final for the run: each record of the run continues from the
state that the run had.

In each state only one process may store the next state, so no state word has two writers.  A restarted process finds
its records by the state and the holder in the state word.  A restarted router stores the same state again, with its new
incarnation as the holder.

No process reads `TRANSITIONS`: tests check the stores of the processes against the table, and `scripts/draw_states.py`
draws it.
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
        RunState.DELIVERED: Role.INPUT,  # an empty run that a dead predecessor left open
        RunState.DISCARDED: Role.INPUT,  # a run of a fenced attempt that was not completed
    },
    RunState.FILLED: {RunState.ROUTED: Role.ROUTER},
    RunState.ROUTED: {
        RunState.ROUTED: Role.ROUTER,  # a restarted router claims the records of its predecessor
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
        RunState.ROUTED_SENT: Role.ROUTER,  # a restarted router claims the records of its predecessor
        RunState.ASSIGNED_SENT: Role.ROUTER,
        RunState.DISCARDED: Role.ROUTER,
    },
    RunState.ASSIGNED_SENT: {RunState.IN_FLIGHT: Role.DISPATCHER},
    RunState.DELIVERED: {},
    RunState.DISCARDED: {},
    RunState.SPLIT: {},
}
