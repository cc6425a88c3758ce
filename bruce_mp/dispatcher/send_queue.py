"""The send queue: the queues of partitions with records to send, in round-robin order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.dispatcher.queues import MAX_IN_FLIGHT, QueueState
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD

if TYPE_CHECKING:
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.dispatcher.record_batches import BatchBuilder
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["RequestContent", "SendQueue"]


class RequestContent(NamedTuple):
    """The content of one request: of each queue at most one batch, which was built earlier or is still to be built.

    Parallel lists take less time than a list of pairs.
    """

    resent: list[tuple[PartitionQueue, BuiltBatch]]
    """Batches that were built for an earlier request, with their queues."""
    queues: list[PartitionQueue]
    """The queues of the batches that are still to be built."""
    contents: list[tuple[Segment, ...]]
    """The segments of the batches that are still to be built, in the order of `queues`."""
    errors: list[SlabError]
    """An error for each damaged segment; `choose` has removed these segments from their queues."""


class SendQueue(list["PartitionQueue"]):
    """The partition queues with `is_scheduled`, in the order in which they send.

    `choose` removes queues that have become empty.
    """

    def schedule(self, queue: PartitionQueue) -> None:
        """Append a queue that has records to send, unless it is already in the send queue."""
        if not queue.is_scheduled and queue.has_work:
            queue.is_scheduled = True
            self.append(queue)

    def clear(self) -> None:
        for queue in self:
            queue.is_scheduled = False
        super().clear()

    @property
    def has_work(self) -> bool:
        return any(queue.has_work for queue in self)

    def next_send_at(self, throttled_until: float) -> float | None:
        """Return the earliest end of a queue's back-off, in seconds of a monotonic clock.

        Return `throttled_until` if it is later or no queue is in back-off, and None if the send queue is empty.
        """
        if not self:
            return None
        ends = (queue.backoff_end for queue in self if queue.backoff_end and queue.state is QueueState.FLOWING)
        return max(min(ends, default=throttled_until), throttled_until)

    def choose(self, builder: BatchBuilder, room: int, now: float) -> RequestContent:
        """Remove the content of a request from the queues: from each queue at most the content of one batch.

        `room` is the maximum payload of the request, in bytes.  A larger batch is alone in its request.
        """
        content = RequestContent([], [], [], [])
        _, queues, contents, _ = content
        deduplicates, max_bytes, flowing = builder.broker_deduplicates, builder.max_bytes, QueueState.FLOWING
        is_first = True
        waiting: list[PartitionQueue] = []
        served: list[PartitionQueue] = []
        rest = iter(self)
        for queue in rest:
            ready, resend = queue.ready, queue.resend
            max_in_flight = MAX_IN_FLIGHT if deduplicates and queue.expected_sequence is not None else 1
            has_room = len(queue.in_flight) < max_in_flight
            if not has_room or queue.state is not flowing or now < queue.backoff_end or not (ready or resend):
                queue.is_scheduled = queue.has_work
                if queue.is_scheduled:
                    waiting.append(queue)
                continue
            first = (resend or ready)[0]
            payload = first.payload
            if payload > room and not is_first:
                waiting.append(queue)
                break
            is_only = len(ready) == 1 and not resend
            if is_only and payload < room and payload + SIZE_OVERHEAD * first.records <= max_bytes:
                # The usual case.  `_pop` does the same, but to call it for each batch would cost time.
                queues.append(queue)
                contents.append((ready.pop(),))
                queue.is_scheduled = False
            else:
                try:
                    payload = _pop(queue, builder, room, content)
                except SlabError as error:
                    content.errors.append(error)
                    waiting.append(queue)
                    continue
                queue.is_scheduled = queue.has_work
                if queue.is_scheduled:
                    served.append(queue)
            room -= payload
            is_first = False
            if room <= 0:
                break
        self[:] = [*waiting, *rest, *served]
        return content


def _pop(queue: PartitionQueue, builder: BatchBuilder, room: int, content: RequestContent) -> int:
    """Move a built batch or the content of a new batch from a queue to `content`, and return its payload in bytes."""
    if queue.resend:
        batch = queue.resend.pop(0)
        content.resent.append((queue, batch))
        return batch.payload
    segments, payload = builder.pop_content(queue.ready, room)
    content.queues.append(queue)
    content.contents.append(segments)
    return payload
