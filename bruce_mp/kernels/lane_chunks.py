"""Chunks for lanes: the span of the next chunk, the share of its topic, and room in the chunks of other lanes.

Both variants of `Lanes` use this module, because it works per chunk and not per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bruce_mp.kernels.pure.lane import Head, Lane
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.holdings import TopicKey

__all__ = ["Chunks", "LaneChunks", "LaneKey", "Thresholds"]

LaneKey = tuple[int, int, int]
"""Topic id, partition index (-1 = AnyPartition), partition count (0 = AnyPartition)."""

LONGEST_SPAN: Final = 32
"""Largest span of a busy lane in chunks, 256 KiB; in a small slab at most a 512th of it."""
_FEW_RUNS: Final = 2
"""A lane that filled its span within this number of runs doubles it, because the end of a span ends a run."""
_MANY_RUNS: Final = 6
"""A lane that needs more runs to fill its span halves it."""
MOST_ASKED: Final = 256
"""Number of a topic's lanes that are asked for one message."""


class Chunks(Protocol):
    """The source of lanes' chunks: a `ChunkPool`, or a wrapper around one."""

    owner: int

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Return the first of `span` neighbouring chunks, opened and empty, or None."""

    def can_spare(self, span: int) -> bool:
        """Report if an optional larger span may be allocated."""

    def seal(self, chunk: int) -> None:
        """Close the chunk to further runs."""

    def release_seals(self) -> None:
        """Allow the reclaim of sealed chunks."""


class Thresholds(Protocol):
    """The source of chunks for topics that have thresholds: `TopicShares`, or a wrapper around it."""

    has_refused: bool

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Return the first of `span` neighbouring chunks for a topic, opened and empty, or None."""

    def allows(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a topic with `span` more chunks is within its threshold."""

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a refused topic may resume."""

    def notice_topics(self) -> None:
        """Charge chunks to the numbers of newly numbered topics."""


class LaneChunks:
    """The chunks of one input's lanes.

    `lanes` and `partitions` (the partition count of each topic) belong to the caller, and change.
    """

    def __init__(
        self,
        slab: Slab,
        pool: Chunks,
        *,
        shares: Thresholds | None,
        lanes: Mapping[LaneKey, Lane],
        partitions: Mapping[int, int],
        close_run: Callable[[Lane], None],
        publish_soon: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._shares = shares
        self._lanes = lanes
        self._partitions = partitions
        self._close_run = close_run
        self._publish_soon = publish_soon
        self._lenders = _Lenders()
        self._longest_span = max(1, min(LONGEST_SPAN, slab.geometry.chunks // 512))
        self.keeps_order = False
        """See `Lanes.keeps_order`."""
        self.refusal = DiscardReason.NO_MEM
        """The reason for the last failure of `make_room`; `refuses_rest` extends it to the rest of the batch."""
        self.refuses_rest = False

    def notice_topics(self) -> None:
        """Follow a change of the topic table."""
        self.clear_borrowers()
        if self._shares is not None:
            self._shares.notice_topics()

    def clear_borrowers(self) -> None:
        """Discard the order in which lanes are asked for room, after a change of their keys."""
        self._lenders.clear()

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Report if a topic that was refused for its share may now hold more: see `TopicShares`."""
        return self._shares is None or self._shares.may_grow(topic, span, now_ms)

    def give_up(self, lane: Lane) -> None:
        """Close the run and seal the chunk."""
        self._close_run(lane)
        if lane.chunk >= 0:
            self._pool.seal(lane.chunk)
            lane.chunk = -1

    def make_room(self, lane: Lane, size: int, now_ms: int) -> bool:
        """Give the lane a new chunk, or a span for a large record of `size` bytes or for large runs."""
        needed = -(-(lay.CHUNK_HEADER + lane.head.size + size) // lay.CHUNK_BYTES)
        wanted = self._next_span(lane)
        self.give_up(lane)
        if needed == 1 and self._is_over(lane.head, now_ms) and self._borrow(lane, size):
            return True
        is_long = wanted > needed and self._pool.can_spare(wanted)
        for span in (wanted, needed) if is_long else (needed,):
            chunk = self._allocate(lane.head, span, now_ms)
            if chunk is not None:
                lane.enter(chunk, span)
                return True
        self._note_refusal(needed)
        return False

    def _allocate(self, head: Head, span: int, now_ms: int) -> int | None:
        if self._shares is None:
            return self._pool.allocate(span, now_ms)
        return self._shares.allocate(head.topic or head.name, span, now_ms)

    def _is_over(self, head: Head, now_ms: int) -> bool:
        """Report if another chunk would take the topic over its threshold."""
        return self._shares is not None and not self._shares.allows(head.topic or head.name, 1, now_ms)

    def _borrow(self, lane: Lane, size: int) -> bool:
        """Let a lane go on in the open chunk of another lane of its topic; False if none has room.

        A topic of many partitions would otherwise need a chunk for each, however little it sends.
        """
        head = lane.head
        for key in self._lenders.keys(head.topic, self._partitions.get(head.topic, 0)):
            lender = self._lanes.get(key)
            if lender is not None and lender.can_lend(head.size + size):
                self._close_run(lender)
                lane.take_over(lender)
                self._lenders.record_borrower(head)
                return True
        return False

    def _note_refusal(self, needed: int) -> None:
        """Store the reason for the failure to find room for a record of `needed` chunks."""
        self._publish_soon()  # room comes from runs that the router knows
        is_over = self._shares is not None and self._shares.has_refused
        self.refusal = DiscardReason.TOPIC_OVER_SHARE if is_over else DiscardReason.NO_MEM
        self.refuses_rest = is_over and (needed == 1 or self.keeps_order)

    def _next_span(self, lane: Lane) -> int:
        """Return the span that a lane should take next, doubled if the present one was full within a run or two.

        All later stages work per run.  The span of a large message may exceed every limit.
        """
        if lane.chunk < 0:
            return 1
        span = lane.span
        if lane.runs > _MANY_RUNS:
            span //= 2
        elif lane.records and lane.runs <= _FEW_RUNS:
            span *= 2
        return min(span, self._longest_span)


class _Lenders:
    """The order in which a topic's lanes are asked for room before a message of the topic is refused."""

    def __init__(self) -> None:
        self._last: dict[int, LaneKey] = {}
        """The lane of each topic that borrowed last, or was asked last."""

    def keys(self, topic: int, partitions: int) -> Iterator[LaneKey]:
        """Yield keys of a topic's lanes: the last borrower first, because it disturbs the fewest other lanes."""
        last = self._last.get(topic, (topic, -1, 0))
        yield last
        yield topic, -1, 0
        for index in range(last[1] + 1, last[1] + 1 + min(partitions, MOST_ASKED)):
            self._last[topic] = key = (topic, index % partitions, partitions)
            yield key

    def record_borrower(self, head: Head) -> None:
        """Remember the lane that has borrowed."""
        self._last[head.topic] = (head.topic, head.partition_index, head.partition_count)

    def clear(self) -> None:
        """Discard all lanes."""
        self._last.clear()
