"""The dispatchers to run, and the mapping from brokers to dispatcher slots.

Each broker that leads partitions has a dispatcher.  State words of messages name the dispatcher by its slot, so a
broker keeps its slot while the dispatcher holds messages, or metadata shows the broker and there are slots for all that
lead partitions.  The mapping is in the process rows of dispatchers, where a new router finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.router.cluster import Address
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from bruce_mp.router.cluster import ClusterView
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.slab.file import Slab

__all__ = ["DispatcherSet"]

UNKNOWN_ADDRESS: Final = Address("", 0)
"""The address of a broker that metadata never showed.  The broker's dispatcher cannot connect to this address, so the
dispatcher hands back its messages."""


class DispatcherSet:
    """The slot of each broker.  `find_slots_in_use` returns the slots of the dispatchers that hold partitions."""

    def __init__(self, slab: Slab, tables: SlabTables, find_slots_in_use: Callable[[], Container[int | None]]) -> None:
        self._slab = slab
        self.slots = {
            node_plus_1 - 1: slot
            for slot in slab.geometry.dispatcher_slots
            if (node_plus_1 := slab.words[self._word_index(slot)])
        }
        """The slot of each broker, by the broker's id (`node`)."""
        self._tables = tables
        self._find_slots_in_use = find_slots_in_use
        self._addresses: dict[int, Address] = {}
        """The last known address of each broker, also of a broker that has left the cluster."""
        self._leading_brokers: frozenset[int] | None = None
        """The brokers that lead partitions in the last metadata.  Before the first metadata: None, or empty after
        `include_holders`."""
        self._to_run: dict[int, tuple[int, Address]] | None = None
        """The last result of `dispatchers_to_run`; None if it must be computed again."""

    def dispatchers_to_run(self) -> dict[int, tuple[int, Address]] | None:
        """Return (broker id, address) by slot, for each broker that leads partitions and each slot in use.

        Return None before the first metadata (unless `include_holders` was called); all dispatchers then keep running.
        """
        if self._to_run is None and self._leading_brokers is not None:
            in_use = self._find_slots_in_use()
            self._to_run = {
                slot: (node, self._addresses.get(node, UNKNOWN_ADDRESS))
                for node, slot in self.slots.items()
                if node in self._leading_brokers or slot in in_use
            }
        return self._to_run

    def include_holders(self) -> None:
        """Let dispatchers that hold partitions run even before the first metadata, so that they can hand them back."""
        if self._leading_brokers is None:
            self._leading_brokers = frozenset()
            self._to_run = None

    def on_holder_changed(self) -> None:
        """Let `dispatchers_to_run` compute a new result, because the holder of a partition changed."""
        self._to_run = None

    def on_metadata(self, view: ClusterView, now_ms: int) -> list[int]:
        """Assign slots to brokers that lead partitions; free and return the unused slots of brokers that have left.

        If there are too few slots, also free the unused ones of brokers that lead nothing now.
        """
        self._addresses.update(view.brokers)
        self._leading_brokers = view.leading_brokers
        self._to_run = None
        freed_slots = self._free_slots(self.slots.keys() - view.brokers.keys())
        new_brokers = view.leading_brokers - self.slots.keys()
        if len(self.slots) + len(new_brokers) > len(self._slab.geometry.dispatcher_slots):
            freed_slots += self._free_slots(self.slots.keys() - view.leading_brokers)
        for node in new_brokers:
            self._assign_slot(node, now_ms)
        return freed_slots

    def _free_slots(self, nodes: Iterable[int]) -> list[int]:
        """Free the slots of these brokers whose dispatchers hold no partitions, and return the slots."""
        in_use = self._find_slots_in_use()
        freed_slots = [self.slots.pop(node) for node in nodes if self.slots[node] not in in_use]
        for slot in freed_slots:
            self._slab.words[self._word_index(slot)] = 0
        return freed_slots

    def _assign_slot(self, node: int, now_ms: int) -> None:
        """Assign a free slot to a broker; report if all slots are in use."""
        used = set(self.slots.values())
        slot = next((free for free in self._slab.geometry.dispatcher_slots if free not in used), None)
        if slot is None:
            self._tables.report_full("brokers", f"messages for partitions that broker {node} leads wait.", now_ms)
            return
        self._slab.words[self._word_index(slot)] = node + 1
        self.slots[node] = slot

    def _word_index(self, slot: int) -> int:
        """Return the index of the slab's word that has the broker id of a slot plus 1, or 0 if the slot is free."""
        row = lay.ROW_FIRST_DISPATCHER + slot
        return (self._slab.row_at(row) + lay.ROW_NODE) >> 2
