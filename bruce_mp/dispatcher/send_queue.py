"""The send queue: the queues of partitions with records to send, in round-robin order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.dispatcher.queues import QueueState
from bruce_mp.errors import SlabError

if TYPE_CHECKING:
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.dispatcher.record_batches import BatchBuilder, BatchPlan
    from bruce_mp.slab.recovery import BuiltBatch

__all__ = ["RequestContent", "SendQueue"]


class RequestContent(NamedTuple):
    """The content of one request: at most one built batch or one plan of each queue."""

    built: list[tuple[PartitionQueue, BuiltBatch]]
    """Batches that were built for an earlier request, with their queues."""
    plans: list[BatchPlan]
    """The contents of batches that are still to be built."""
    errors: list[SlabError]
    """An error for each damaged segment; `choose` has removed these segments from their queues."""


class SendQueue(dict[tuple[int, int], "PartitionQueue"]):
    """Partition queues by (topic number, partition), in the order in which they send.

    `choose` removes queues that have become empty.
    """

    def schedule(self, queue: PartitionQueue) -> None:
        """Append a queue that has records to send, unless it is already in the send queue."""
        if queue.has_work:
            self.setdefault((queue.topic, queue.partition), queue)

    @property
    def has_work(self) -> bool:
        return any(queue.has_work for queue in self.values())

    def next_send_at(self, throttled_until: float) -> float | None:
        """Return the earliest end of a queue's back-off, in seconds of a monotonic clock.

        Return `throttled_until` if it is later or no queue is in back-off, and None if the send queue is empty.
        """
        if not self:
            return None
        ends = (queue.backoff_end for queue in self.values() if queue.backoff_end and queue.state is QueueState.FLOWING)
        return max(min(ends, default=throttled_until), throttled_until)

    def choose(self, builder: BatchBuilder, room: int, now: float) -> RequestContent:
        """Remove the content of a request from the queues: from each queue at most one built batch or one plan.

        `room` is the maximum payload of the request, in bytes.  A larger batch is alone in its request.
        """
        content = RequestContent([], [], [])
        deduplicates, is_first = builder.broker_deduplicates, True
        for key, queue in list(self.items()):
            if not queue.may_send(now, broker_deduplicates=deduplicates):
                if not queue.has_work:
                    del self[key]
                continue
            if not is_first and (queue.resend or queue.ready)[0].payload > room:
                break
            try:
                if queue.resend:
                    batch = queue.resend.pop(0)
                    content.built.append((queue, batch))
                    room -= batch.payload
                else:
                    segments, payload = builder.pop_content(queue.ready, room)
                    content.plans.append((queue, segments))
                    room -= payload
            except SlabError as error:
                content.errors.append(error)
                continue
            del self[key]
            if queue.ready or queue.resend:
                self[key] = queue  # at the end
            is_first = False
            if room <= 0:
                break
        return content
