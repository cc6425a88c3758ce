"""The producer id of a slab, and whether batches are numbered at all.

What the brokers can is found out anew by each daemon, and a new producer id is taken then: with a new id all partitions
begin at 0.  But a batch that was numbered keeps its numbers until it is settled, so nothing changes while the slab
holds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.tables import PartitionTable

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["decide_anew", "is_numbering", "stop", "take_producer"]

_UNDECIDED, _CAN, _CANNOT = 0, 1, 2
_BUILT: Final = (State.IN_FLIGHT, State.RETURNED_SENT, State.ROUTED_SENT, State.ASSIGNED_SENT)


def is_numbering(slab: Slab) -> bool:
    """Whether batches are numbered: the brokers recognise what they have already."""
    return slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _CAN


def decide_anew(slab: Slab) -> None:
    """A daemon starts, and none of its processes is there yet: ask the brokers again, unless numbers are in use."""
    if not any(found.sequence >= 0 for found in sweep(slab, _BUILT)):
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNDECIDED


def take_producer(slab: Slab, producer_id: int) -> None:
    """From now on batches are numbered; before, none was (router only)."""
    PartitionTable(slab).reset()
    slab.store_signed(lay.SUPER_PRODUCER_ID, producer_id)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CAN


def stop(slab: Slab) -> None:
    """The brokers cannot, or `required_acks` does not allow it; no batch is numbered (router only)."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CANNOT
