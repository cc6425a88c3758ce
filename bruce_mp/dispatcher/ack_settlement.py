"""Settlement of acknowledged record batches, several in one transaction.

A transaction marks the records of whole batches as delivered, and raises the counters of messages and delays.  The sums
by topic are not part of it, so a crash may lose the last additions to them.  Records that were damaged after sending
are quarantined, and the others are settled without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.corruption import without_damaged
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS, increments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.tables import TopicTable
    from bruce_mp.telemetry.traffic import TrafficSums

__all__ = ["AckSettler"]


class AckSettler:
    """Settles batches as delivered, and adds them to the traffic sums of their topics."""

    def __init__(self, slab: Slab, row: ProcessRow, topics: TopicTable, traffic: TrafficSums) -> None:
        self._slab = slab
        self._row = row
        self._topics = topics
        self._traffic = traffic

    def settle(self, batches: Sequence[SentBatch]) -> None:
        for group in _transactions(batches):
            try:
                self._settle(group)
            except SlabError:
                self._settle_undamaged(group)

    def _settle(self, batches: Sequence[SentBatch]) -> None:
        """Settle batches in one transaction; raise SlabError for a damaged segment and settle nothing."""
        total, by_topic = kernels.wait_times(self._slab, batches, BOUNDS_MS, steady_ms())
        # Read the names first: the router may remove a topic once its messages are settled.
        names = self._topics.names_of(by_topic)
        self._topics.clear_refusals(by_topic)  # the brokers accept these topics again
        segments = [segment for batch in batches for segment in batch.segments]
        increments = {Counter.MsgDelivered: total.messages, **increments_of(total.delays, total.waited_ms)}
        self._row.settle(segments, RunState.DELIVERED, 0, increments)  # 0 = no reason for a discard
        self._row.add(Counter.ConnectorGotSuccessfulAck, len(batches))
        self._traffic.add_delivered(zip(names, by_topic.values(), strict=True))

    def _settle_undamaged(self, batches: Iterable[SentBatch]) -> None:
        for batch in batches:
            undamaged = without_damaged(self._slab, self._row, batch.segments)
            if undamaged:
                self._settle([batch._replace(segments=tuple(undamaged))])


def _transactions(batches: Iterable[SentBatch]) -> Iterator[list[SentBatch]]:
    """Group whole batches, in order, into transactions of at most `MAX_SETTLED_SEGMENTS`; no batch has more."""
    group: list[SentBatch] = []
    room = MAX_SETTLED_SEGMENTS
    for batch in batches:
        room -= len(batch.segments)
        if room < 0 and group:
            yield group
            group, room = [], MAX_SETTLED_SEGMENTS - len(batch.segments)
        group.append(batch)
    if group:
        yield group
