"""Parcels for dispatchers; the router sends them at the end of each round of its event loop.

Before the outbox appends a parcel, it stores in the slab that the records are assigned to the dispatcher.  So a lost
frame loses no message: router and dispatcher find the assigned records in the slab.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.kernels import ChosenPartition, RunQueue
from bruce_mp.pipeline.corruption import quarantine
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import Move
from bruce_mp.slab.runs import raise_damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Outbox"]

_UNBUILT_STATES: Final = (RunState.ROUTED, RunState.ASSIGNED)
"""The states of records before and after their assignment to a dispatcher, except those in `_BUILT_STATES`."""
_BUILT_STATES: Final = (RunState.ROUTED_SENT, RunState.ASSIGNED_SENT)
"""The same for records of batches that a dispatcher built and returned: Kafka may have such a batch."""


class Outbox:
    """The parcels for each dispatcher slot, and the slots that need a FLUSH of a topic.

    A dispatcher may accumulate the records of a QUEUE parcel; FLUSH lets it send the accumulated records of a topic.
    """

    def __init__(self, slab: Slab, row: ProcessRow, incarnation: int) -> None:
        self._slab = slab
        self._row = row
        self._incarnation = incarnation
        self._parcels: dict[int, list[Parcel]] = {}
        self._flush_slots: dict[int, set[int]] = defaultdict(set)
        """By topic number: the slots to which records of the topic were posted in QUEUE since the last FLUSH."""
        self._queues: dict[int, RunQueue] = {}
        """By slot: the segments that the next call of `send_queues` posts.  A topic may be missing in `RunQueue.topics`
        if it is in `_flush_slots` already."""
        self._choices: dict[tuple[int, int], ChosenPartition] = {}
        """The results of `choice_of`.  Topics share them, so that less memory is read for each run."""

    def choice_of(self, slot: int, partition: int) -> ChosenPartition:
        """Return the choice of a partition whose leader has the dispatcher in `slot`."""
        choice = self._choices.get((slot, partition))
        if choice is None:
            queue = self._queues.setdefault(slot, RunQueue(slot, [], [], []))
            choice = self._choices[slot, partition] = ChosenPartition(partition, queue)
        return choice

    def post(self, slot: int, parcel: Parcel) -> None:
        """Assign a parcel's segments to a slot, and append the parcel to the slot's parcels."""
        self.assign(slot, parcel.segments, is_built=parcel.kind is ParcelKind.SENT)
        self._parcels.setdefault(slot, []).append(parcel)

    def assign(self, slot: int, segments: Sequence[Segment], *, is_built: bool) -> None:
        """Store in the slab that segments are assigned to a slot; `is_built` is True for segments of built batches."""
        routed, assigned = _BUILT_STATES if is_built else _UNBUILT_STATES
        move = Move(state_word(routed, self._incarnation), state_word(assigned, slot), counter=lay.FLOW_ASSIGNED)
        if len(self._row.move(segments, move)) != len(segments):
            raise_damage(self._slab, segments)

    def bind(self, segments: list[Segment], partitions: list[int]) -> list[Segment]:
        """Store in the slab the partition of each segment; quarantine damaged segments, and return the others."""
        try:
            kernels.bind_partition(self._slab, segments, partitions)
        except SlabError:
            return list(self._bind_each(zip(segments, partitions, strict=True)))
        return segments

    def _bind_each(self, bindings: Iterable[tuple[Segment, int]]) -> Iterator[Segment]:
        for segment, partition in bindings:
            try:
                kernels.bind_partition(self._slab, [segment], [partition])
                yield segment
            except SlabError as error:
                quarantine(self._row, error)

    def send_queues(self) -> None:
        """Bind the segments in the queues to their partitions, and post them in one QUEUE parcel for each slot."""
        for slot, segments, partitions, topics in self._queues.values():
            if not segments:
                continue
            bound = [*self.bind(segments, partitions)]
            for topic in topics:
                self._flush_slots[topic].add(slot)
            segments.clear()
            partitions.clear()
            topics.clear()
            self.post(slot, Parcel(ParcelKind.QUEUE, segments=bound))

    def post_flush(self, topic: int) -> None:
        for slot in self._flush_slots.pop(topic, ()):
            self.post(slot, Parcel(ParcelKind.FLUSH, topic))

    def remove_topic(self, topic: int) -> None:
        """Forget the slots that need a FLUSH of a deleted topic."""
        self._flush_slots.pop(topic, None)

    def replace(self, slot: int, parcels: list[Parcel]) -> None:
        """Replace the parcels for a slot; the segments of the new parcels are assigned already."""
        self._parcels[slot] = parcels

    def remove_slot(self, slot: int) -> None:
        self._parcels.pop(slot, None)

    def drain(self) -> dict[int, list[Parcel]]:
        """Empty the outbox and return a frame for each slot; a frame's first parcel names the router's incarnation."""
        parcels_by_slot, self._parcels = self._parcels, {}
        return {
            slot: [Parcel(ParcelKind.SENDER, partition=self._incarnation), *parcels]
            for slot, parcels in parcels_by_slot.items()
        }
