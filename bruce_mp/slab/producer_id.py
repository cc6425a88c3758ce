"""The producer id of a slab, and the decision between idempotent and plain batches.

Each daemon asks the brokers again for idempotence and takes a new producer id, under which all partitions begin at 0.
But a numbered batch keeps its numbers until it is settled, so nothing changes while the slab holds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.tables import PartitionTable

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["disable_idempotence", "is_idempotent", "reset_idempotence", "store_producer"]

_UNDECIDED, _CAN, _CANNOT = 0, 1, 2
_BUILT: Final = (RunState.IN_FLIGHT, RunState.RETURNED_SENT, RunState.ROUTED_SENT, RunState.ASSIGNED_SENT)


def is_idempotent(slab: Slab) -> bool:
    """Return True if batches have sequence numbers, so that brokers recognise repeated batches."""
    return slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _CAN


def reset_idempotence(slab: Slab) -> None:
    """Make the next daemon ask the brokers again, unless numbers are in use.  No other process may run yet."""
    if not any(found.sequence >= 0 for found in sweep(slab, _BUILT)):
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNDECIDED


def store_producer(slab: Slab, producer_id: int) -> None:
    """Store the producer id and number all batches that follow; no earlier batch has numbers (router only)."""
    PartitionTable(slab).reset()
    slab.store_signed(lay.SUPER_PRODUCER_ID, producer_id)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CAN


def disable_idempotence(slab: Slab) -> None:
    """Send batches without numbers: brokers lack idempotence or `required_acks` forbids it (router only)."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CANNOT
