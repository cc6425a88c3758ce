"""A topic in the router: its batch of AnyPartition messages, and the partition that the next ones go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.batching import BatchBuilder
from bruce_mp.config.topics import BatchingKind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.router.cluster import TopicView
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["Topic", "portions_of"]

PORTION_BYTES: Final = 64 * 1024
"""Of what had to wait a partition gets so much at a time: a backlog is for all of them."""


class Topic:
    """One topic.  `parked` are AnyPartition messages for which no partition is open, in order.

    AnyPartition messages visit the available partitions in turn, so that each broker gets its share.  With batching
    per topic each batch goes one further, without batching each run; combined topics stay with a partition as long
    as a batch lasts, because many small batches cost more than a few larger ones.
    """

    def __init__(self, slab: Slab, number: int, name: bytes, rule: TopicBatching, rng: random.Random) -> None:
        self.number = number
        self.name = name
        self.rule = rule
        self.view: TopicView | None = None
        self.parked: list[Segment] = []
        self.parked_since_ms = 0
        self.parked_keyed: list[Segment] = []
        self.batch = BatchBuilder(slab, rule.limits) if rule.kind is BatchingKind.PER_TOPIC else None
        self._rng = rng
        self.alarm_ms = 0
        """For which due time of the batch an alarm is set."""
        self.targets: list[int] = []
        """The partition for each index of a partition key; empty while no partition is available."""
        self._turn: list[int] = []
        self._cursor = 0
        self._stay_until_ms = 0

    def take_view(self, view: TopicView | None) -> None:
        """New metadata.  The turn starts at a random place so that daemons do not march in step."""
        if view == self.view:
            return
        self.view = view
        self._turn = list(view.leaders) if view is not None else []
        self.targets = _targets(view) if view is not None else []
        self._rng.shuffle(self._turn)
        self._cursor = 0

    def next_partition(self, is_open: Callable[[int], bool], now_ms: int) -> int | None:
        """The partition for the next AnyPartition messages; None when no available one is open."""
        if now_ms >= self._stay_until_ms:
            self._cursor += 1
            self._stay_until_ms = now_ms + self._stay_ms()
        for step in range(len(self._turn)):
            partition = self._turn[(self._cursor + step) % len(self._turn)]
            if is_open(partition):
                self._cursor += step
                return partition
        return None

    def move_on(self) -> None:
        """Have the next messages go to the next partition."""
        self._stay_until_ms = 0

    def _stay_ms(self) -> int:
        return self.rule.limits.time_ms or 0 if self.rule.kind is BatchingKind.COMBINED else 0

    @property
    def holds_any(self) -> bool:
        return bool(self.parked or self.parked_keyed)


def _targets(view: TopicView) -> list[int]:
    designated = (view.designated(index) for index in range(len(view.partitions)))
    return [partition for partition in designated if partition is not None]


def portions_of(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Segments in order, cut into portions."""
    portion: list[Segment] = []
    size = 0
    for segment in segments:
        portion.append(segment)
        size += segment.payload
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
