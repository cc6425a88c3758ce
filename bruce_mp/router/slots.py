"""Dispatcher slots: a broker keeps its slot while it exists or the slot holds messages.

A state word names its holder by slot.  The mapping is in the dispatchers' process rows, so it survives the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["SlotTable"]


class SlotTable:
    """The mapping from brokers to dispatcher slots."""

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
        """Return the slot of a broker; None if it has none."""
        return self._slots.get(node)

    def assign(self, node: int) -> int | None:
        """Return the slot of a broker, a new one if needed; None if all are in use."""
        if node in self._slots:
            return self._slots[node]
        taken = set(self._slots.values())
        slot = next((free for free in range(lay.DISPATCHER_SLOTS) if free not in taken), None)
        if slot is not None:
            self._slab.words[self._at(slot)] = node + 1
            self._slots[node] = slot
        return slot

    def release(self, node: int) -> None:
        """Free the slot of a broker; no state word may name it any more."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._slab.words[self._at(slot)] = 0

    def pairs(self) -> list[tuple[int, int]]:
        """Return all (broker, slot) pairs."""
        return list(self._slots.items())
