"""Parcels for dispatchers, which the router sends at the end of each round.

The outbox stores the state words of a parcel's segments before it queues the parcel, so a lost frame loses no message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import Move
from bruce_mp.slab.runs import raise_damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Outbox"]

_STATES: Final = (RunState.ROUTED, RunState.ASSIGNED)
"""The states of records before and after their assignment."""
_BUILT_STATES: Final = (RunState.ROUTED_SENT, RunState.ASSIGNED_SENT)
"""The same for records that a dispatcher built into a batch and returned: Kafka may have them."""


class Outbox:
    """The parcels for each dispatcher slot, and the slots that need a FLUSH of a topic."""

    def __init__(self, slab: Slab, row: ProcessRow, incarnation: int) -> None:
        self._slab = slab
        self._row = row
        self._incarnation = incarnation
        self._parcels: dict[int, list[Parcel]] = {}
        self._flush_slots: dict[int, set[int]] = defaultdict(set)
        """By topic number: the slots of dispatchers that got QUEUE records of the topic since its last FLUSH."""

    def post(self, slot: int, parcel: Parcel) -> None:
        """Store the assignment of a parcel's segments to a slot, and append the parcel."""
        self.assign(slot, parcel.segments, is_built=parcel.kind is ParcelKind.SENT)
        self._parcels.setdefault(slot, []).append(parcel)

    def assign(self, slot: int, segments: Sequence[Segment], *, is_built: bool) -> None:
        """Store the assignment of segments to a slot; `is_built`: they are of built batches."""
        routed, assigned = _BUILT_STATES if is_built else _STATES
        move = Move(state_word(routed, self._incarnation), state_word(assigned, slot), counter=lay.FLOW_ASSIGNED)
        if len(self._row.move(segments, move)) != len(segments):
            raise_damage(self._slab, segments)

    def post_queue(self, slot: int, partitions: Iterable[tuple[int, int]], segments: list[Segment]) -> None:
        """Post the segments of these (topic, partition) pairs as QUEUE; the dispatcher may accumulate them."""
        self.post(slot, Parcel(ParcelKind.QUEUE, segments=segments))
        for topic, _ in partitions:
            self._flush_slots[topic].add(slot)

    def post_flush(self, topic: int) -> None:
        """Post FLUSH of a topic to the dispatchers that got QUEUE records of it since the last FLUSH."""
        for slot in self._flush_slots.pop(topic, ()):
            self.post(slot, Parcel(ParcelKind.FLUSH, topic))

    def remove_topic(self, topic: int) -> None:
        """Post no FLUSH of a deleted topic."""
        self._flush_slots.pop(topic, None)

    def replace(self, slot: int, parcels: list[Parcel]) -> None:
        """Replace the parcels for a slot; the segments of the new parcels are assigned already."""
        self._parcels[slot] = parcels

    def remove_slot(self, slot: int) -> None:
        """Remove the parcels for a slot that was freed."""
        self._parcels.pop(slot, None)

    def drain(self) -> dict[int, list[Parcel]]:
        """Empty the outbox, and return a frame for each slot; its first parcel names the router's incarnation."""
        parcels, self._parcels = self._parcels, {}
        return {
            slot: [Parcel(ParcelKind.SENDER, partition=self._incarnation), *group] for slot, group in parcels.items()
        }
