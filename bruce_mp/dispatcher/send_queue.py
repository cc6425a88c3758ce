"""The round-robin send queue over the partitions that have records to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.dispatcher.queues import QueueState
from bruce_mp.errors import SlabError

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.dispatcher.record_batches import BatchBuilder, BatchPlan
    from bruce_mp.slab.recovery import SentBatch

__all__ = ["RequestLimits", "SendQueue"]


class RequestLimits(NamedTuple):
    """The limits of produce requests and hand-backs."""

    request_bytes: int
    max_in_flight: int
    hand_back_timeout_ms: int
    """The longest time for which a hand-back waits for outstanding responses."""

    @classmethod
    def of(cls, config: Config) -> RequestLimits:
        delivery = config.delivery
        limit = config.batching.produce_request_data_limit
        return cls(limit, delivery.max_in_flight, delivery.dispatcher_restart_max_delay_ms)


class SendQueue(dict[tuple[int, int], "PartitionQueue"]):
    """Queues by topic and partition, in sending order.  `choose` removes the empty queues that it meets."""

    def schedule(self, queue: PartitionQueue) -> None:
        """Append a queue if it has records to send, unless it is in the send queue."""
        if queue.has_work:
            self.setdefault((queue.topic, queue.partition), queue)

    @property
    def has_work(self) -> bool:
        """True if a queue has records to send."""
        return any(queue.has_work for queue in self.values())

    def next_send_at(self, throttled_until: float) -> float | None:
        """Return the time, in seconds, at which a queue in back-off may send, but at least `throttled_until`.

        Return `throttled_until` if no queue is in back-off, and None without a queue.
        """
        if not self:
            return None
        ends = (queue.not_before for queue in self.values() if queue.not_before and queue.state is QueueState.FLOWING)
        return max(min(ends, default=throttled_until), throttled_until)

    def choose(
        self, builder: BatchBuilder, room: int, now: float
    ) -> list[tuple[PartitionQueue, SentBatch | BatchPlan | SlabError]]:
        """Remove the content of a request of `room` bytes from the queues: a built batch or a plan of each.

        The first one may be larger.  If planning fails, the result has the SlabError, and the damaged records are
        no longer in the queue.
        """
        chosen: list[tuple[PartitionQueue, SentBatch | BatchPlan | SlabError]] = []
        is_first = True
        for key, queue in list(self.items()):
            if not queue.may_send(now, broker_deduplicates=builder.broker_deduplicates):
                if not queue.has_work:
                    del self[key]
                continue
            try:
                content = _pop_next(queue, builder, room, is_first=is_first)
            except SlabError as error:
                chosen.append((queue, error))
                continue
            if content is None:
                break
            chosen.append((queue, content))
            self._move_to_end(key, queue)
            room -= content.payload
            is_first = False
            if room <= 0:
                break
        return chosen

    def _move_to_end(self, key: tuple[int, int], queue: PartitionQueue) -> None:
        del self[key]
        if queue.has_work:
            self[key] = queue


def _pop_next(
    queue: PartitionQueue, builder: BatchBuilder, room: int, *, is_first: bool
) -> SentBatch | BatchPlan | None:
    """Remove and return the next batch or plan of a queue; None if it does not fit."""
    if queue.resend:
        return queue.resend.popleft() if is_first or queue.resend[0].payload <= room else None
    if not is_first and queue.ready[0].payload > room:
        return None
    return builder.plan(queue, room)
