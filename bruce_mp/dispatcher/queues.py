"""The queue of one partition in a dispatcher.  A message stays in the queue until its ack or its hand-back.

    ready      records free to join any batch
    resend     built batches to send: again, or for the first time by this dispatcher after a reroute
    in_flight  batches sent and without a response, in order
    failed     batches with an error response to send again, in order

States of a queue:

    FLOWING   sends batches
    DRAINING  after an error response or a HAND_BACK, sends nothing until every batch in flight has its response, so
              that batches are resent in order; the broker refuses the batches after a refused one
    PAUSED    has reported PAUSED to the router, which will request the hand-back

A broker without state for a producer accepts any sequence number.  So the first batch is in flight alone: if the broker
refused it and accepted a second one, the two would change places.
"""

from __future__ import annotations

import random
from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["MAX_IN_FLIGHT", "PartitionQueue", "QueueState", "Queues"]

MIN_RETRY_DELAY_S: Final = 0.1
MAX_RETRY_DELAY_S: Final = 10.0
"""The delays before a partition's batches are sent again; they double with each failure."""
_MAX_DOUBLINGS: Final = 10
"""More doublings than lead from the shortest delay to the longest; keeps the power of 2 small."""
MAX_IN_FLIGHT: Final = 5
"""The most batches in flight for a partition; a broker remembers the last five batches of a producer."""


@unique
class QueueState(Enum):
    FLOWING = "flowing"
    DRAINING = "draining"
    PAUSED = "paused"


class PartitionQueue:
    """The batches and records of one partition.  Times are in seconds of a monotonic clock."""

    __slots__ = (
        "backoffs", "bumps_epoch", "entry_at", "expected_sequence", "failed", "hands_back", "in_doubt", "in_flight",
        "may_have_gap", "not_before", "partition", "pauses", "ready", "renumber_from", "resend", "state",
        "stops_numbering", "topic", "waits_before_retry",
    )  # fmt: skip

    def __init__(self, topic: int, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.state = QueueState.FLOWING
        self.ready: deque[Segment] = deque()
        # Lists, because they are short: an empty deque takes 600 bytes more, and there are thousands of queues.
        self.resend: list[SentBatch] = []
        self.in_flight: list[SentBatch] = []
        self.failed: list[SentBatch] = []
        self.entry_at = 0
        """The file offset of the partition's entry in the partition table; 0 before the first batch."""
        self.expected_sequence: int | None = None
        """The sequence number that the broker expects next: None before its first good response, and after a
        batch without a number."""
        self.in_doubt = False
        """True if the broker may have or may still get batches whose numbers must not be used again; then renumbering
        bumps the producer epoch."""
        self.hands_back = False
        """Once drained, hand all records back to the router."""
        self._reset_error_state()

    def _reset_error_state(self) -> None:
        self.not_before = 0.0
        """The time before which nothing is sent; 0 without a back-off."""
        self.backoffs = 0
        """The number of back-offs since the last accepted batch."""
        self.waits_before_retry = False
        """Once drained, wait before sending again."""
        self.renumber_from: int | None = None
        """Once drained, number the batches from this number on, which the broker expects next."""
        self.may_have_gap = False
        """True if a discarded batch may have left a gap in the sequence numbers; the next response shows it."""
        self.bumps_epoch = False
        """Once drained, bump the producer epoch."""
        self.stops_numbering = False
        """Once drained, send without sequence numbers."""
        self.pauses = False
        """Once drained, report PAUSED to the router."""

    @property
    def has_work(self) -> bool:
        return bool(self.ready or self.resend)

    @property
    def oldest(self) -> Segment | None:
        """The segment with the oldest message; None in an empty queue."""
        batches = self.failed or self.in_flight or self.resend
        return batches[0].segments[0] if batches else self.ready[0] if self.ready else None

    @property
    def messages(self) -> int:
        batches = sum(batch.records for batch in (*self.failed, *self.in_flight, *self.resend))
        return batches + sum(segment.records for segment in self.ready)

    @property
    def is_idle(self) -> bool:
        """True if the queue is empty and neither a pause nor a hand-back is pending."""
        is_empty = not (self.ready or self.in_flight or self.resend or self.failed)
        return is_empty and self.state is QueueState.FLOWING and not self.hands_back

    def may_send(self, now: float, *, broker_deduplicates: bool) -> bool:
        """Return True if a batch may be sent now; `broker_deduplicates`: the broker detects repeated batches."""
        if self.state is not QueueState.FLOWING or now < self.not_before or not (self.ready or self.resend):
            return False
        window = MAX_IN_FLIGHT if broker_deduplicates and self.expected_sequence is not None else 1
        return len(self.in_flight) < window

    def drain(self) -> None:
        """Send nothing until all outstanding responses have arrived."""
        if self.state is QueueState.FLOWING:
            self.state = QueueState.DRAINING

    def start_backoff(self, now: float) -> None:
        """Send nothing for a random time around the delay, which doubles with each back-off."""
        delay_s = min(MAX_RETRY_DELAY_S, MIN_RETRY_DELAY_S * 2.0 ** min(self.backoffs, _MAX_DOUBLINGS))
        self.waits_before_retry = False
        self.backoffs += 1
        self.not_before = now + delay_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret depends on it

    def on_accepted(self, batch: SentBatch) -> None:
        """Remove an acknowledged batch from those in flight, and advance the expected sequence number."""
        self.in_flight.remove(batch)
        self.backoffs = 0
        self.may_have_gap = False
        self.expected_sequence = batch.next_sequence
        if self.in_doubt:
            self.update_doubt()

    def update_doubt(self) -> None:
        """Clear `in_doubt` if the queue has no built batch that the broker could write twice."""
        if not (self.in_flight or self.resend or self.failed):
            self.in_doubt = False

    def requeue_failed(self) -> None:
        """Put failed batches before those to resend; call it when the queue is drained."""
        self.resend, self.failed = [*self.failed, *self.resend], []

    def fail_in_flight(self) -> list[SentBatch]:
        """Move the batches in flight to `resend` after a lost connection, and return them; they are in doubt."""
        lost, self.in_flight = self.in_flight, []
        # Failed batches are older than those in flight, because responses arrive in order.
        self.failed += lost
        self.requeue_failed()
        self.in_doubt = self.in_doubt or bool(lost)
        self.expected_sequence = None
        return lost

    def pop_all(self) -> tuple[list[SentBatch], list[Segment]]:
        """Empty the queue and return (built batches, other records); no batch may be in flight."""
        self.requeue_failed()
        built, rest = list(self.resend), list(self.ready)
        self.resend.clear()
        self.ready.clear()
        self.state = QueueState.FLOWING
        self.expected_sequence = None
        self.in_doubt = self.hands_back = False
        self._reset_error_state()
        return built, rest


class Queues(dict[tuple[int, int], PartitionQueue]):
    """The queues of a dispatcher by topic and partition.

    Topic numbers are never reused, so queues of deleted topics would accumulate.  From `limit` queues on, a new one
    removes the idle queues of topics that do not exist, unless they are in `scheduled`.
    """

    def __init__(self, limit: int, exists: Callable[[int], bool], scheduled: Container[tuple[int, int]]) -> None:
        super().__init__()
        self._limit = limit
        self._exists = exists
        self._scheduled = scheduled

    def get_or_create(self, topic: int, partition: int) -> PartitionQueue:
        queue = self.get((topic, partition))
        if queue is None:
            if len(self) >= self._limit:
                self._remove_deleted()
            queue = self[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def _remove_deleted(self) -> None:
        idle = [key for key, queue in self.items() if queue.is_idle and key not in self._scheduled]
        for key in idle:
            if not self._exists(key[0]):
                del self[key]
