"""The queue of one partition in a dispatcher.

A message stays in the queue until the broker acknowledges it or the dispatcher hands it back to the router.  The queue
has these lists:

    ready      records that are not in a batch yet
    resend     built batches to send: this dispatcher sent them before, or another dispatcher built them
    in_flight  batches that were sent and have no response yet
    failed     batches with an error response, which go to `resend` when the queue is drained

States of a queue:

    FLOWING   sends batches
    DRAINING  after an error response or a HAND_BACK, sends nothing until every batch in flight has its response: the
              broker refuses all batches after a refused batch, and they must be sent again in order
    PAUSED    has reported PAUSED to the router, and waits until the router requests the hand-back

A broker that knows no sequence number of a producer accepts any number.  So the first batch is in flight alone: if the
broker refused the first batch and accepted the second, the second would be written before the first.
"""

from __future__ import annotations

import random
from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.runs import next_sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["MAX_IN_FLIGHT", "PartitionQueue", "QueueState", "Queues"]

MIN_RETRY_DELAY_S: Final = 0.1
MAX_RETRY_DELAY_S: Final = 10.0
"""The limits of the delay before a partition's batches are sent again; the delay doubles with each failure."""
_MAX_DOUBLINGS: Final = 10
"""The largest exponent of 2 in the computation of a delay; `MAX_RETRY_DELAY_S` needs fewer doublings."""
MAX_IN_FLIGHT: Final = 5
"""The maximum number of batches in flight for a partition; a broker remembers the last five batches of a producer."""


@unique
class QueueState(Enum):
    FLOWING = "flowing"
    DRAINING = "draining"
    PAUSED = "paused"


class PartitionQueue:
    """The batches and records of one partition.  Times are in seconds of a monotonic clock."""

    __slots__ = (
        "backoff_count", "backoff_end", "cut_end", "entry_offset", "expected_sequence", "failed", "gap_end", "in_doubt",
        "in_flight", "is_scheduled", "must_back_off", "must_bump_epoch", "must_hand_back", "must_pause",
        "must_stop_numbering", "partition", "ready", "renumber_from", "resend", "state", "topic",
    )  # fmt: skip

    def __init__(self, topic: int, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.state = QueueState.FLOWING
        self.ready: deque[Segment] = deque()
        # Lists, because they are short: an empty deque takes 600 bytes more, and there are thousands of queues.
        self.resend: list[BuiltBatch] = []
        self.in_flight: list[BuiltBatch] = []
        self.failed: list[BuiltBatch] = []
        self.is_scheduled = False
        """True if the queue is in the dispatcher's send queue."""
        self.entry_offset = 0
        """The file offset of the partition's entry in the partition table; 0 before the first batch."""
        self.expected_sequence: int | None = None
        """The sequence number that the broker expects next.  It is None if the broker has accepted no batch since the
        connection was lost or the epoch changed, or if the last accepted batch had no number or was `in_doubt`."""
        self.in_doubt = False
        """True if the broker may have written a batch that it has not acknowledged, or may still get it over an
        abandoned connection.  To renumber batches, the dispatcher then bumps the producer epoch."""
        self.must_hand_back = False
        """True if all records go back to the router once the queue is drained."""
        self._reset_error_state()

    def _reset_error_state(self) -> None:
        self.backoff_end = 0.0
        """The time before which nothing is sent; 0 if the queue is not in back-off."""
        self.backoff_count = 0
        """The number of back-offs since the last accepted batch."""
        self.must_back_off = False
        """True if a back-off starts once the queue is drained."""
        self.renumber_from: int | None = None
        """The first sequence number of the batches once the queue is drained; None if they keep their numbers."""
        self.gap_end: int | None = None
        """The first sequence number behind the last gap that discarded batches may have left; the response to a later
        batch shows if there is a gap.  None if there is certainly no gap."""
        self.must_bump_epoch = False
        """True if the producer epoch is bumped (incremented) once the queue is drained."""
        self.cut_end: int | None = None
        """The first sequence number behind a batch in doubt that is sent again in parts; None if a batch was accepted
        since.  A broker that has written the batch does not recognize the parts, and accepts none of them."""
        self.must_stop_numbering = False
        """True if the batches lose their sequence numbers once the queue is drained."""
        self.must_pause = False
        """True if PAUSED is reported to the router once the queue is drained."""

    @property
    def has_work(self) -> bool:
        return bool(self.ready or self.resend)

    @property
    def first_segment(self) -> Segment | None:
        """The segment that the broker must accept first; None if the queue is empty."""
        batches = self.failed or self.in_flight or self.resend
        return batches[0].segments[0] if batches else self.ready[0] if self.ready else None

    @property
    def message_count(self) -> int:
        built_count = sum(batch.records for batch in (*self.failed, *self.in_flight, *self.resend))
        return built_count + sum(segment.records for segment in self.ready)

    @property
    def is_idle(self) -> bool:
        """True if the queue is empty and neither a pause nor a hand-back is pending."""
        is_empty = not (self.ready or self.in_flight or self.resend or self.failed)
        return is_empty and self.state is QueueState.FLOWING and not self.must_hand_back

    def drain(self) -> None:
        """Send nothing until all outstanding responses have arrived."""
        if self.state is QueueState.FLOWING:
            self.state = QueueState.DRAINING

    def start_backoff(self, now: float) -> None:
        """Begin a back-off of the delay times a random factor; the delay doubles with each back-off."""
        delay_s = min(MAX_RETRY_DELAY_S, MIN_RETRY_DELAY_S * 2.0 ** min(self.backoff_count, _MAX_DOUBLINGS))
        self.must_back_off = False
        self.backoff_count += 1
        self.backoff_end = now + delay_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret depends on it

    def on_accepted(self, batch: BuiltBatch) -> None:
        """Remove an accepted batch from the batches in flight, and advance the expected sequence number."""
        self.in_flight.remove(batch)
        self.backoff_count = 0
        self.cut_end = None
        _, _, _, sequence, segments = batch  # not `records`, to save a call for each batch
        if sequence >= 0:
            for segment in segments:
                sequence += segment.records
            sequence &= 0x7FFFFFFF
        if self.gap_end is not None and (sequence < 0 or _is_before(self.gap_end, sequence)):
            self.gap_end = None
        if self.in_doubt or sequence < 0:  # a batch in doubt may be a repetition: the broker may expect a later number
            self.expected_sequence = None
            self.update_doubt()
        else:
            self.expected_sequence = sequence

    def begin_gap(self, batch: BuiltBatch) -> None:
        """Note that the discard of a batch, or of some of its records, may have left a gap."""
        end = next_sequence(batch.base_sequence, batch.records)
        if self.gap_end is None or _is_before(self.gap_end, end):
            self.gap_end = end

    def note_cut(self, batch: BuiltBatch) -> None:
        """Note that a batch in doubt is sent again in parts."""
        end = next_sequence(batch.base_sequence, batch.records)
        if self.cut_end is None or _is_before(self.cut_end, end):
            self.cut_end = end

    @property
    def begins_with_part(self) -> bool:
        """Return True if the first batch to resend may be a part of a batch that the broker has written."""
        if self.cut_end is None or not self.resend:
            return False
        return _is_before(self.resend[0].base_sequence, self.cut_end)

    def begin_doubt(self) -> None:
        """Set `in_doubt`; until the queue has no built batch, one batch is in flight at a time.

        A broker that accepts more batches meanwhile may forget the batch in doubt, and then write a repetition of it.
        """
        self.in_doubt, self.expected_sequence = True, None

    def update_doubt(self) -> None:
        """Clear `in_doubt` if the queue has no built batch."""
        if not (self.in_flight or self.resend or self.failed):
            self.in_doubt = False

    def requeue_failed(self) -> None:
        """Put the failed batches before the other batches to resend; call this when the queue is drained."""
        self.resend, self.failed = [*self.failed, *self.resend], []

    def fail_in_flight(self) -> list[BuiltBatch]:
        """After the loss of the connection, move the batches in flight to `resend`, and return them."""
        unanswered, self.in_flight = self.in_flight, []
        # Failed batches are older than batches in flight, because responses arrive in order.
        self.failed += unanswered
        self.requeue_failed()
        self.in_doubt = self.in_doubt or bool(unanswered)
        self.expected_sequence = None
        return unanswered

    def pop_all(self) -> tuple[list[BuiltBatch], list[Segment]]:
        """Empty the queue and return (built batches, other records); call this only if no batch is in flight."""
        self.requeue_failed()
        built, unbuilt = list(self.resend), list(self.ready)
        self.resend.clear()
        self.ready.clear()
        self.state = QueueState.FLOWING
        self.expected_sequence = None
        self.in_doubt = self.must_hand_back = False
        self._reset_error_state()
        return built, unbuilt


def _is_before(sequence: int, other: int) -> bool:
    """Return True if `sequence` precedes `other`; sequence numbers wrap at 2**31."""
    return 0 < (other - sequence) & 0x7FFFFFFF < 1 << 30


class Queues(dict[tuple[int, int], PartitionQueue]):
    """The queues of a dispatcher by (topic number, partition).

    Topic numbers are hardly ever reused, so the queues of deleted topics would accumulate.  If there are `limit` queues
    when another is needed, idle queues of deleted topics are removed, except scheduled queues.
    """

    def __init__(self, limit: int, exists: Callable[[int], bool]) -> None:
        super().__init__()
        self._limit = limit
        self._exists = exists

    def get_or_create(self, topic: int, partition: int) -> PartitionQueue:
        queue = self.get((topic, partition))
        if queue is None:
            if len(self) >= self._limit:
                self._remove_deleted()
            queue = self[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def _remove_deleted(self) -> None:
        idle = [key for key, queue in self.items() if queue.is_idle and not queue.is_scheduled]
        for key in idle:
            if not self._exists(key[0]):
                del self[key]
