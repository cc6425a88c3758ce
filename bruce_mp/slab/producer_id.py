"""The producer id of a slab, and the decision between batches with and without sequence numbers.

Each daemon requests a new producer id from the brokers, under which the sequence numbers of all partitions begin at 0.
If the slab holds a batch with sequence numbers, the daemon keeps the producer id, because the numbers stay valid only
under it.
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

_UNKNOWN, _SUPPORTED, _UNSUPPORTED = 0, 1, 2
_BUILT: Final = (RunState.IN_FLIGHT, RunState.RETURNED_SENT, RunState.ROUTED_SENT, RunState.ASSIGNED_SENT)


def is_idempotent(slab: Slab) -> bool:
    """Return True if batches have sequence numbers, by which brokers recognise repeated batches."""
    return slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _SUPPORTED


def reset_idempotence(slab: Slab) -> None:
    """Let the router request a new producer id, unless a batch has sequence numbers (supervisor only, at its start)."""
    if not any(found.sequence >= 0 for found in sweep(slab, _BUILT)):
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNKNOWN


def store_producer(slab: Slab, producer_id: int) -> None:
    """Store the producer id, so that later batches get sequence numbers; none may have one yet (router only)."""
    PartitionTable(slab).reset()
    slab.store_signed(lay.SUPER_PRODUCER_ID, producer_id)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _SUPPORTED


def disable_idempotence(slab: Slab) -> None:
    """Omit sequence numbers, because brokers lack idempotence or `required_acks` forbids it (router only)."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNSUPPORTED
