"""Lenders: the lanes that are asked for room in their chunks before a message of their topic is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.kernels.pure.lane import Head

__all__ = ["LaneKey", "Lenders"]

LaneKey = tuple[int, int, int]
"""Topic id, partition index (-1 = AnyPartition), partition count (0 = AnyPartition)."""

MOST_ASKED: Final = 256
"""Number of a topic's lanes that are asked for one message."""


class Lenders:
    """The order in which the lanes of each topic are asked."""

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

    def note(self, head: Head) -> None:
        """Note the lane that has borrowed."""
        self._last[head.topic] = (head.topic, head.partition_index, head.partition_count)

    def clear(self) -> None:
        """Forget all lanes, after a change of their keys."""
        self._last.clear()
