"""The parcels that wait for the end of the router's round, by dispatcher slot.

The state words of a parcel's segments are stored before the parcel is queued, so a lost frame loses no message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.slab.layout import RunState, state_word

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["Outbox"]


class Outbox:
    """Parcels by slot, and the slots to which a FLUSH of a topic has to go."""

    def __init__(self, slab: Slab, incarnation: int) -> None:
        self._slab = slab
        self._incarnation = incarnation
        self._parcels: dict[int, list[Parcel]] = {}
        self._gatherers: dict[int, set[int]] = defaultdict(set)
        """By topic: the slots of dispatchers that may gather records of it.  A dispatcher flushes them by itself at a
        RESYNC or a HAND_BACK."""

    def post(self, slot: int, parcel: Parcel) -> None:
        """Assign the segments of a parcel to a slot, and queue the parcel."""
        state = RunState.ASSIGNED_SENT if parcel.kind is ParcelKind.SENT else RunState.ASSIGNED
        kernels.set_state(self._slab, parcel.segments, state_word(state, slot))
        self._parcels.setdefault(slot, []).append(parcel)

    def post_queue(self, slot: int, places: Iterable[tuple[int, int]], segments: list[Segment]) -> None:
        """Post segments bound to these topics and partitions, which the dispatcher may gather until a FLUSH."""
        self.post(slot, Parcel(ParcelKind.QUEUE, 0, -1, segments))
        for topic, _ in places:
            self._gatherers[topic].add(slot)

    def post_flush(self, topic: int) -> None:
        """Post FLUSH of a topic to the dispatchers that got records of it since the last FLUSH."""
        for slot in self._gatherers.pop(topic, ()):
            self.post(slot, Parcel(ParcelKind.FLUSH, topic))

    def remove_topic(self, topic: int) -> None:
        """Post no FLUSH of a deleted topic."""
        self._gatherers.pop(topic, None)

    def replace(self, slot: int, parcels: list[Parcel]) -> None:
        """Replace a slot's parcels by others, whose segments are assigned already."""
        self._parcels[slot] = parcels

    def remove_slot(self, slot: int) -> None:
        """Remove the parcels of a slot that has no dispatcher any more."""
        self._parcels.pop(slot, None)

    def drain(self) -> dict[int, list[Parcel]]:
        """Return and empty the outbox, by slot; the first parcel of each slot holds the router's incarnation."""
        parcels, self._parcels = self._parcels, {}
        return {slot: [Parcel(ParcelKind.SENDER, 0, self._incarnation), *its] for slot, its in parcels.items()}
