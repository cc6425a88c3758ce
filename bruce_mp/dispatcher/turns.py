"""Whose turn it is: the queues that have something to send, in the order in which they had it or last sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.dispatcher.queues import QueueState
from bruce_mp.errors import SlabError

if TYPE_CHECKING:
    from bruce_mp.dispatcher.batches import BatchMaker, Plan
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.slab.recovery import SentBatch

__all__ = ["Turns"]


class Turns(dict[tuple[int, int], "PartitionQueue"]):
    """Queues by topic and partition.  One that has nothing to send any more leaves when its turn comes."""

    def schedule(self, queue: PartitionQueue) -> None:
        """Give a queue its turn, if it has something to send."""
        if queue.has_work:
            self.setdefault((queue.topic, queue.partition), queue)

    @property
    def have_work(self) -> bool:
        """Whether anything is to be sent."""
        return any(queue.has_work for queue in self.values())

    def next_at(self, rest_until: float) -> float | None:
        """When a queue that waits for its back-off may send, and none may before `rest_until`; None if none waits."""
        delayed = (q.not_before for q in self.values() if q.not_before and q.state is QueueState.FLOWING)
        earliest = min(delayed, default=rest_until if self else None)
        return None if earliest is None else max(earliest, rest_until)

    def choose(
        self, maker: BatchMaker, room: int, now: float
    ) -> list[tuple[PartitionQueue, SentBatch | Plan | SlabError]]:
        """What goes into a request of `room` bytes, one of each queue: a batch that was built, or the plan of another.

        One goes always, however large.  What cannot be planned, because it is not what it claims, has left its queue.
        """
        chosen: list[tuple[PartitionQueue, SentBatch | Plan | SlabError]] = []
        is_first = True
        for key, queue in list(self.items()):
            if not queue.may_send(now, recognised=maker.recognised):
                if not queue.has_work:
                    del self[key]
                continue
            try:
                plan = _next_of(queue, maker, room, is_first=is_first)
            except SlabError as error:
                chosen.append((queue, error))
                continue
            if plan is None:
                break
            chosen.append((queue, plan))
            self._move_to_end(key, queue)
            room -= plan.payload
            is_first = False
            if room <= 0:
                break
        return chosen

    def _move_to_end(self, key: tuple[int, int], queue: PartitionQueue) -> None:
        del self[key]
        if queue.has_work:
            self[key] = queue


def _next_of(queue: PartitionQueue, maker: BatchMaker, room: int, *, is_first: bool) -> SentBatch | Plan | None:
    """What a queue sends next; None if there is no room for it."""
    if queue.resend:
        return queue.resend.popleft() if is_first or queue.resend[0].payload <= room else None
    if not is_first and queue.ready[0].payload > room:
        return None
    return maker.plan(queue, room)
