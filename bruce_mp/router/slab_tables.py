"""The slab's topic and partition tables: reuse of entries, and errors when a table is full.

The router frees an entry only if a table is full, the cluster lacks the topic beyond its grace period
(`MissingTopics`), and a sweep finds no records of the topic in the slab.  A sweep reads every chunk, so the router
sweeps at most every `SWEEP_INTERVAL_MS`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.layout import SETTLED, RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.tables import PartitionTable, TopicTable

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from collections.abc import Set as AbstractSet

    from bruce_mp.slab.file import Slab

__all__ = ["SWEEP_INTERVAL_MS", "SlabTables"]

_LOG = logging.getLogger(__name__)
_HELD: Final = frozenset(RunState) - SETTLED - {RunState.SPLIT}
SWEEP_INTERVAL_MS: Final = 10_000
"""The shortest time between two sweeps for entries to free."""
REPORT_INTERVAL_MS: Final = 60_000
"""The shortest time between two log messages about the same full table."""


class SlabTables:
    """The router's topic table and partition table."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.topics = TopicTable(slab)
        self.partitions = PartitionTable(slab)
        self._freed_names: dict[int, bytes] = {}
        self._next_sweep_ms = 0
        self._reported_ms: dict[str, int] = {}

    def name_of(self, topic: int) -> bytes:
        """Return a topic's name, or b"" if unknown.

        Names of the entries freed last stay known, because inputs may still hand over runs with their numbers.
        """
        try:
            return self.topics.name_of(topic)
        except KeyError:
            return self._freed_names.get(topic, b"")

    def free_entries(self, existing: Container[bytes], used: Callable[[], AbstractSet[int]], now_ms: int) -> list[int]:
        """Free the entries of topics that the cluster lacks, if a table is full; return the numbers of freed topics.

        `used` returns the topics whose entries must stay.
        """
        if not (not self.topics.room or self.partitions.is_full) or now_ms < self._next_sweep_ms:
            return []
        kept = used()
        known = {self.topics.id_of(name): name for name in self.topics.known()}
        gone = {topic: name for topic, name in known.items() if name not in existing and topic not in kept}
        if gone:
            self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
            held = {found.topic for found in sweep(self._slab, _HELD)}
            self._free_topics({topic: name for topic, name in gone.items() if topic not in held})
        return list(gone.keys() & self._freed_names.keys())

    def _free_topics(self, gone: dict[int, bytes]) -> None:
        self._freed_names = gone
        if gone:
            self.topics.remove(gone)
            self.partitions.keep_only(set(map(self.topics.id_of, self.topics.known())))
            _LOG.info("A table of the slab was full; the router freed the entries of %d deleted topics.", len(gone))

    def report_full(self, what: str, consequence: str, now_ms: int) -> None:
        """Log that a table of the slab is full, at most once in `REPORT_INTERVAL_MS` for each table."""
        if now_ms >= self._reported_ms.get(what, now_ms):
            self._reported_ms[what] = now_ms + REPORT_INTERVAL_MS
            _LOG.error("The slab's table of %s is full: %s", what, consequence)
