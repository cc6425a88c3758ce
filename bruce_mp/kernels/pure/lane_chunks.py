"""The allocation of chunks to lanes.

A lane appends messages to its open chunk, or to a *span* of neighboring chunks that serve as one.  When the span is
full, this module chooses the length of the next span and checks the topic's limit (*threshold*).  A topic at its
threshold gets no further chunk.  Then the lane may take over the open chunk of another lane of the topic, the *donor*.

With many topics, an input needs a chunk for every few messages, so the usual case of `LaneChunks.make_room` has a
compiled variant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bruce_mp.kernels.pure.lane import Lane, LaneHeader
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.holdings import TopicKey

__all__ = ["ChunkSource", "LaneChunks", "LaneKey", "Thresholds"]

LaneKey = tuple[int, int, int]
"""Topic number, partition index (-1 = AnyPartition), number of the topic's partitions (0 = AnyPartition)."""

MAX_SPAN_CHUNKS: Final = 32
"""Maximum number of chunks in a span of a busy lane: 256 KiB."""
_SPAN_DIVISOR: Final = 512
"""In a small slab, the maximum is the number of the slab's chunks divided by this number."""
_FEW_RUNS: Final = 2
"""After a full span with at most this number of runs, the lane's next span is twice as long."""
_MANY_RUNS: Final = 6
"""After a full span with more runs than this number, the lane's next span is half as long."""
MAX_DONORS: Final = 256
"""Maximum number of a topic's partitions that `LaneChunks` searches for a donor, for one message."""


class ChunkSource(Protocol):
    """The source of lanes' chunks: a `ChunkPool`, or a wrapper around a `ChunkPool`."""

    owner: int
    """The number of the input's process row in the slab."""

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Open a span of `span` chunks and return its first chunk; None if there is no room."""

    def can_spare(self, span: int) -> bool:
        """Return True if a lane may get a span of `span` chunks, although a shorter span would be long enough."""

    def seal(self, chunk: int) -> None:
        """Close the chunk to further runs."""

    def allow_reclaim(self) -> None:
        """Let the pool reclaim the chunks sealed so far; all their messages must be counted."""


class Thresholds(Protocol):
    """The source of chunks for topics with thresholds: `TopicThresholds`, or a wrapper around it."""

    has_refused: bool
    """True if the last allocation failed because of the topic's threshold, not for lack of free chunks."""

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Open a span of `span` chunks for a topic and return its first chunk; None on failure, see `has_refused`."""

    def allows(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Return True if a topic with `span` more chunks is within its threshold."""

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Return True if a topic that was refused `span` chunks may get enough chunks now for another try."""

    def on_topics_changed(self) -> None:
        """Count a topic's chunks under its number, and no longer under its name, once the topic has a number."""


class LaneChunks:
    """Allocates chunks to the lanes of one input, and seals full chunks.

    The caller keeps `lanes` and `partition_counts` (by topic number) up to date.
    """

    def __init__(
        self,
        slab: Slab,
        pool: ChunkSource,
        *,
        thresholds: Thresholds | None,
        lanes: Mapping[LaneKey, Lane],
        partition_counts: Mapping[int, int],
        close_run: Callable[[Lane], None],
        request_publish: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._thresholds = thresholds
        self._lanes = lanes
        self._partition_counts = partition_counts
        self._close_run = close_run
        self._request_publish = request_publish
        self._last_searched: dict[int, LaneKey] = {}
        """By topic number: the lane that took over a donor's chunk last, or the lane at which a later search ended."""
        self._longest_span = max(1, min(MAX_SPAN_CHUNKS, slab.geometry.chunks // _SPAN_DIVISOR))
        self.caller_retries = False
        """True if the input tries to append refused messages again later, as stream inputs do."""
        self.refusal = DiscardReason.NO_MEM
        """The reason why the last failed `make_room` found no room."""
        self.refuses_rest = False
        """True if, after a failed `make_room`, the caller must also refuse the lane's later messages in the batch."""

    def on_topics_changed(self) -> None:
        """Handle a change of the numbers in the topic table."""
        self.clear_donors()
        if self._thresholds is not None:
            self._thresholds.on_topics_changed()

    def clear_donors(self) -> None:
        """Forget the lanes at which the searches for donors ended, as these lanes may not exist any more."""
        self._last_searched.clear()

    def may_grow(self, topic: TopicKey, span: int, now_ms: int) -> bool:
        """Return True if a topic that was refused `span` chunks may get enough chunks now for another try."""
        return self._thresholds is None or self._thresholds.may_grow(topic, span, now_ms)

    def seal_lane(self, lane: Lane) -> None:
        """Close a lane's run and seal its chunk."""
        self._close_run(lane)
        if lane.chunk >= 0:
            self._pool.seal(lane.chunk)
            lane.chunk = -1

    def make_room(self, lane: Lane, size: int, now_ms: int) -> bool:
        """Give a lane another span, with room for a record of `size` bytes; return False if there is no room."""
        # A new chunk begins with a new run, so there must be room for both headers and the record.
        needed_span = -(-(lay.CHUNK_HEADER + lane.header.size + size) // lay.CHUNK_BYTES)  # rounded up
        wanted_span = self._next_span(lane)
        self.seal_lane(lane)
        if needed_span == 1 and self._is_over_threshold(lane.header, now_ms) and self._adopt_donor_chunk(lane, size):
            return True
        may_be_longer = wanted_span > needed_span and self._pool.can_spare(wanted_span)
        spans = (wanted_span, needed_span) if may_be_longer else (needed_span,)
        for span in spans:
            chunk = self._allocate(lane.header, span, now_ms)
            if chunk is not None:
                lane.use_chunk(chunk, span)
                return True
        self._record_refusal(needed_span)
        return False

    def _allocate(self, header: LaneHeader, span: int, now_ms: int) -> int | None:
        if self._thresholds is None:
            return self._pool.allocate(span, now_ms)
        return self._thresholds.allocate(header.topic or header.name, span, now_ms)

    def _is_over_threshold(self, header: LaneHeader, now_ms: int) -> bool:
        """Return True if another chunk would take the topic over its threshold."""
        return self._thresholds is not None and not self._thresholds.allows(header.topic or header.name, 1, now_ms)

    def _adopt_donor_chunk(self, lane: Lane, size: int) -> bool:
        """Move the open chunk of a donor to this lane; return False if no donor has room.

        Without donors, a topic of many partitions would need a chunk for each partition, however few messages it has.
        """
        header = lane.header
        for key in self._donor_keys(header.topic):
            donor = self._lanes.get(key)
            if donor is not None and donor.has_room_for_run(header.size + size):
                self._close_run(donor)
                lane.adopt_chunk(donor)
                self._last_searched[header.topic] = (header.topic, header.partition_index, header.partition_count)
                return True
        return False

    def _donor_keys(self, topic_number: int) -> Iterator[LaneKey]:
        """Yield keys of a topic's lanes, beginning with the lane that took over a chunk most recently.

        So the same chunk passes from lane to lane, and the other lanes keep their chunks.
        """
        any_partition_key = (topic_number, -1, 0)  # of the lane of AnyPartition messages
        last_key = self._last_searched.get(topic_number, any_partition_key)
        yield last_key
        yield any_partition_key
        partition_count = self._partition_counts.get(topic_number, 0)
        first_index = last_key[1] + 1  # behind the partition index of the last lane
        for index in range(first_index, first_index + min(partition_count, MAX_DONORS)):
            self._last_searched[topic_number] = key = (topic_number, index % partition_count, partition_count)
            yield key

    def _record_refusal(self, needed_span: int) -> None:
        """Set `refusal` and `refuses_rest` after no room was found for a record that needs `needed_span` chunks."""
        self._request_publish()  # only the delivery of published runs frees room
        is_over_threshold = self._thresholds is not None and self._thresholds.has_refused
        self.refusal = DiscardReason.TOPIC_OVER_SHARE if is_over_threshold else DiscardReason.NO_MEM
        # At the threshold: if a single chunk was refused, no later message of the lane fits.  If a longer span was
        # refused, a smaller message may fit, but must not overtake the refused message if the caller retries.
        # After NO_MEM no caller retries, so each caller tries to append all later messages.
        self.refuses_rest = is_over_threshold and (needed_span == 1 or self.caller_retries)

    def _next_span(self, lane: Lane) -> int:
        """Return the length that a lane's next span should have: longer after a span of few runs, shorter after many.

        Long runs cost less than short ones, because all later stages work per run.
        """
        if lane.chunk < 0:
            return 1
        span = lane.span
        if lane.runs > _MANY_RUNS:
            span //= 2
        elif lane.records and lane.runs <= _FEW_RUNS:  # the end of the span cuts the open run short
            span *= 2
        return min(span, self._longest_span)
