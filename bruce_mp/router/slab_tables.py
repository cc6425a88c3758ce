"""The slab's topic and partition tables: reuse of entries, and errors when a table is full.

The router frees an entry only if a table is full, the topic has been missing from the cluster for longer than its grace
period (see `MissingTopics`), and a sweep finds no held messages of the topic.  A sweep reads all chunks of the slab, so
the router sweeps at most once in `SWEEP_INTERVAL_MS`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import LAYOUT_VERSION, SETTLED, RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.tables import PartitionTable, TopicTable

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bruce_mp.slab.file import Slab

__all__ = ["SWEEP_INTERVAL_MS", "SlabTables"]

log = logging.getLogger(__name__)
_HELD_STATES: Final = frozenset(RunState) - SETTLED - {RunState.SPLIT}
"""The states of held messages.  SPLIT is not among them: it is the state of a run with separate states of its records,
and the sweep finds these records one by one."""
SWEEP_INTERVAL_MS: Final = 10_000
"""The shortest time between two sweeps that look for entries to free."""
REPORT_INTERVAL_MS: Final = 60_000
"""The shortest time between two log messages about the same full table."""
_NEW: Final = Geometry(chunks=1)
_LIMITS: Final = {"topics": _NEW.topics - 1, "partitions": _NEW.partitions, "brokers": len(_NEW.dispatcher_slots)}
"""Limits of a new slab, by the name of the table; entry 0 of the topic table is never used."""
_REMEDY: Final = (
    " The slab has the limits of an older release. A restart raises this one to {:,} if everything was delivered, or "
    "exported with `bruce slab export` and the slab removed before the start."
)


class SlabTables:
    """The router's topic table and partition table."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.topics = TopicTable(slab)
        self.partitions = PartitionTable(slab)
        # The previous router may have died within a change, before these parts of it.
        self.topics.increment_version()
        self._free_partitions()
        self._freed_names: dict[int, bytes] = {}
        """The names of the topics that the last sweep freed, by number."""
        self._next_sweep_ms = 0
        self._next_report_ms: dict[str, int] = {}
        """By the name of a table: the time before which `report_full` does not report it again."""

    def name_of(self, topic: int) -> bytes:
        """Return the name of a topic number, or b"" if the number is unknown.

        The topics that the last sweep freed stay known, because inputs may still hand over runs with their numbers.
        """
        try:
            return self.topics.name_of(topic)
        except KeyError:
            return self._freed_names.get(topic, b"")

    def reclaim_entries(
        self, existing_names: Container[bytes], find_topics_in_use: Callable[[], Container[int]], now_ms: int
    ) -> list[int]:
        """Free the entries of deleted topics, if a table is full; return the numbers of freed topics.

        `existing_names` has the topics of the cluster and the topics in their grace period.  `find_topics_in_use`
        returns the numbers of the topics that must keep their entries even if they were deleted.
        """
        is_full = not self.topics.free_entry_count or self.partitions.is_full
        if not is_full or now_ms < self._next_sweep_ms:
            return []
        in_use = find_topics_in_use()
        numbers = self.topics.numbers()
        deleted = {topic: name for name, topic in numbers.items() if name not in existing_names and topic not in in_use}
        if not deleted:
            return []
        self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
        held = {found.topic for found in sweep(self._slab, _HELD_STATES)}
        self._free_topics({topic: name for topic, name in deleted.items() if topic not in held})
        return list(self._freed_names)

    def _free_topics(self, freed: dict[int, bytes]) -> None:
        self._freed_names = freed
        if freed:
            self.topics.remove(freed)
            self._free_partitions()
            log.info("A table of the slab was full; the router freed the entries of %d deleted topics.", len(freed))

    def _free_partitions(self) -> None:
        """Free the partitions of the topics without entries."""
        self.partitions.retain_topics(set(self.topics.numbers().values()))

    def report_full(self, table: str, consequence: str, now_ms: int) -> None:
        """Log that a table of the slab is full, at most once in `REPORT_INTERVAL_MS` for each table."""
        if now_ms >= self._next_report_ms.get(table, 0):
            self._next_report_ms[table] = now_ms + REPORT_INTERVAL_MS
            remedy = _REMEDY.format(_LIMITS[table]) if self._slab.layout_version < LAYOUT_VERSION else ""
            log.error("The slab's table of %s is full: %s%s", table, consequence, remedy)
