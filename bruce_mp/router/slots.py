"""Dispatcher slots: a broker keeps its slot as long as it exists, or its slot holds something.

A record's word names its holder by slot, so the mapping is kept in the dispatchers' rows and survives the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["SlotTable"]


class SlotTable:
    """Which broker has which slot."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._slots = {
            self._node(slot): slot for slot in range(lay.DISPATCHER_SLOTS) if self._slab.words[self._at(slot)]
        }

    def _at(self, slot: int) -> int:
        row = lay.ROW_FIRST_DISPATCHER + slot
        return (self._slab.geometry.rows_at + row * lay.ROW_BYTES + lay.ROW_NODE) >> 2

    def _node(self, slot: int) -> int:
        return self._slab.words[self._at(slot)] - 1

    def slot_of(self, node: int) -> int | None:
        """The slot of a broker; None when it has none."""
        return self._slots.get(node)

    def give(self, node: int) -> int | None:
        """The slot of a broker, a new one if it has none; None when all are taken."""
        if node in self._slots:
            return self._slots[node]
        taken = set(self._slots.values())
        slot = next((free for free in range(lay.DISPATCHER_SLOTS) if free not in taken), None)
        if slot is not None:
            self._slab.words[self._at(slot)] = node + 1
            self._slots[node] = slot
        return slot

    def free(self, node: int) -> None:
        """The broker is gone, and nothing in the slab is held by its slot."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._slab.words[self._at(slot)] = 0

    def pairs(self) -> list[tuple[int, int]]:
        """(broker, slot) of all that have one."""
        return list(self._slots.items())
