"""The queue of one partition in a dispatcher.  A message stays in it until its ack.

    ready      records free to join any batch
    resend     batches that were built and have to be sent, again or (rerouted here) anew
    in_flight  batches sent and not answered, in order
    failed     batches answered with an error that have to be sent again, in order

Life of a queue:

    FLOWING   sends
    DRAINING  an error was answered: nothing is sent until every batch in flight has its answer, so that what is sent
              again goes in order; the broker refuses what was behind a refused batch
    PAUSED    the router was told; what the queue holds will be handed back

A broker that knows nothing of a producer takes any sequence number.  So the first batch goes alone: had it company, and
were it refused and the company not, they would change places.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.slab.runs import next_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["PER_PARTITION", "PartitionQueue", "QueueState", "Queues"]

PER_PARTITION: Final = 5
"""Batches in flight per partition; a broker remembers as many of a producer."""


@unique
class QueueState(Enum):
    """See the module's text."""

    FLOWING = "flowing"
    DRAINING = "draining"
    PAUSED = "paused"


class PartitionQueue:
    """See the module's text.  `not_before` is on the clock of the process, in seconds."""

    __slots__ = (
        "backs_off", "bump", "expected", "failed", "gap", "hand_back", "in_doubt", "in_flight", "is_torn",
        "not_before", "partition", "pause", "ready", "resend", "retries", "state", "stops_numbering", "topic",
    )  # fmt: skip

    def __init__(self, topic: int, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.state = QueueState.FLOWING
        self.ready: deque[Segment] = deque()
        self.resend: deque[SentBatch] = deque()
        self.in_flight: deque[SentBatch] = deque()
        self.failed: list[SentBatch] = []
        self.expected: int | None = None
        """The sequence number that the broker expects next: None before its first good answer, or if what it
        took had no number."""
        self.in_doubt = False
        """A request was given up without its answer, and may yet be carried out."""
        self.hand_back = False
        """Once drained, hand everything back: the router asked."""
        self._forget_plans()

    def _forget_plans(self) -> None:
        self.not_before = 0.0
        self.retries = 0
        self.backs_off = False
        """Once drained, wait before sending again."""
        self.gap: int | None = None
        """Once drained, number anew from here: what had this number was given up, and never written."""
        self.is_torn = False
        """Something was given up whose number may be missing; if so, the broker will tell."""
        self.bump = False
        """Once drained, take the next producer epoch."""
        self.stops_numbering = False
        """Once drained, go on without sequence numbers."""
        self.pause = False
        """Once drained, tell the router."""

    @property
    def has_work(self) -> bool:
        return bool(self.ready or self.resend)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing, and nobody waits for it."""
        holds = self.has_work or self.in_flight or self.failed
        return not holds and self.state is QueueState.FLOWING and not self.hand_back

    def may_send(self, now: float, *, recognised: bool) -> bool:
        """Whether a batch may go out now; `recognised`: whether the broker sees that it has a batch already."""
        window = PER_PARTITION if recognised and self.expected is not None else 1
        has_room = self.state is QueueState.FLOWING and len(self.in_flight) < window
        return has_room and now >= self.not_before and self.has_work

    def drain(self) -> None:
        """Send nothing more until all answers are there."""
        if self.state is QueueState.FLOWING:
            self.state = QueueState.DRAINING

    def answered(self, batch: SentBatch) -> None:
        """A batch in flight has its answer."""
        self.in_flight.remove(batch)

    def accepted(self, batch: SentBatch) -> None:
        """A batch in flight has its answer, and the broker has the batch."""
        self.answered(batch)
        self.retries = 0
        self.is_torn = False
        is_numbered = batch.base_sequence >= 0
        self.expected = next_sequence(batch.base_sequence, batch.records) if is_numbered else None
        if self.in_doubt:
            self.settle_doubts()

    def settle_doubts(self) -> None:
        """With nothing built that waits for an answer there is nothing left that could be written twice."""
        if not (self.in_flight or self.resend or self.failed):
            self.in_doubt = False

    def gather(self) -> None:
        """After draining: what failed goes before what was waiting to be sent again."""
        self.resend = deque([*self.failed, *self.resend])
        self.failed = []

    def lose(self) -> list[SentBatch]:
        """The connection is gone: everything in flight is in doubt and has to be sent again.  What was in flight."""
        doubtful = list(self.in_flight)
        # Failed ones are older than those still in flight behind them: answers come in order.
        self.failed += doubtful
        self.in_flight.clear()
        self.gather()
        self.in_doubt = self.in_doubt or bool(doubtful)
        self.expected = None
        return doubtful

    def release(self) -> tuple[list[SentBatch], list[Segment]]:
        """All that the queue holds, nothing of which is in flight: (built batches, the rest); it begins anew."""
        self.gather()
        sent, fresh = list(self.resend), list(self.ready)
        self.resend.clear()
        self.ready.clear()
        self.state = QueueState.FLOWING
        self.expected = None
        self.in_doubt = self.hand_back = False
        self._forget_plans()
        return sent, fresh


class Queues(dict[tuple[int, int], PartitionQueue]):
    """The queues of a dispatcher by topic and partition.

    Topics come and go as long as it lives.  When there are more than `most` queues, those of topics that do not exist
    any more are forgotten: their numbers are never given again.  Those `in_turn` stay until they have had their turn.
    """

    def __init__(self, most: int, exists: Callable[[int], bool], in_turn: Container[tuple[int, int]]) -> None:
        super().__init__()
        self._most = most
        self._exists = exists
        self._in_turn = in_turn

    def of(self, topic: int, partition: int) -> PartitionQueue:
        """The queue of a partition; a new one if there is none."""
        queue = self.get((topic, partition))
        if queue is None:
            if len(self) >= self._most:
                self._forget_gone()
            queue = self[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def _forget_gone(self) -> None:
        idle = [key for key, queue in self.items() if queue.is_idle and key not in self._in_turn]
        for key in idle:
            if not self._exists(key[0]):
                del self[key]
