"""Portions of received stream data, and the batches of whole messages that `StreamAdmission` appends together."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.room import chunks_for, count_fitting_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.input.fenced_attempts import Attempt
    from bruce_mp.input.flush_groups import FlushGroup
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.kernels import Ingested, NoRoom
    from bruce_mp.slab.chunks import ChunkPool

__all__ = [
    "ClientExtents",
    "Extents",
    "Portion",
    "StreamBatch",
    "index_in_batch",
    "join_extents",
    "length_of",
    "remove_over_share",
]

Extents = list[tuple[int, int]]
"""The extents of messages; an *extent* is the offset of a message in a buffer, and its length."""
length_of: Final = itemgetter(1)
"""Return the length of an extent."""


class Portion(NamedTuple):
    """The received bytes of a client: offsets `begin` to `end` of a buffer that is passed with the portion."""

    client: StreamClientState
    begin: int
    end: int


ClientExtents = tuple["StreamClientState", Extents]
"""A client, and the extents of its messages."""


class StreamBatch:
    """Messages of several clients that are appended together; each call of `add` adds messages of one flush group.

    A batch with an `attempt` has only messages of this attempt.  If `keeps_timestamps` is True, the policy "clamp"
    replaces no timestamps.
    """

    def __init__(self, attempt: Attempt | None = None, *, keeps_timestamps: bool = False) -> None:
        self.attempt = attempt
        self.keeps_timestamps = keeps_timestamps
        self.extents: Extents = []
        self.sources: list[int] = []
        """The number of the flush group of each message."""
        self.largest_size = 0
        """Upper bound of the messages' sizes in bytes; 0 = unknown."""
        self._starts: list[int] = []
        """The index in `extents` of the first message of each call of `add`."""
        self._senders: list[tuple[StreamClientState, FlushGroup]] = []
        """The client and flush group of each call of `add`."""

    def add(self, client: StreamClientState, extents: Extents, largest_size: int = 0) -> None:
        """Add messages of a client, none longer than `largest_size` bytes; 0 = unknown."""
        if extents:
            self._starts.append(len(self.extents))
            self._senders.append((client, client.flush_group))
            self.extents += extents
            self.sources += [client.flush_group.number] * len(extents)
            self.largest_size = max(self.largest_size, largest_size)

    def count_fitting(self, pool: ChunkPool, more: Extents, largest_size: int) -> int:
        """Return how many messages of `more` find room behind the batch; none has more than `largest_size` bytes."""
        if chunks_for(largest_size) > pool.capacity:
            return self._count_before_oversized(pool, more)
        _, first_size = (self.extents or more)[0]
        count, largest_size = len(self.extents) + len(more), max(largest_size, self.largest_size)
        return max(0, count_fitting_messages(pool, count, largest_size, first_size) - len(self.extents))

    def _count_before_oversized(self, pool: ChunkPool, more: Extents) -> int:
        """Return how many messages find room before the first message of `more` that is larger than the pool.

        If no message precedes it, return 1: the large message joins the batch, and the lanes then refuse it.
        """
        oversized = next(index for index, (_, size) in enumerate(more) if chunks_for(size) > pool.capacity)
        before = more[:oversized]
        return self.count_fitting(pool, before, max(map(length_of, before))) if before else 1

    def sender_of(self, index: int) -> tuple[StreamClientState, FlushGroup]:
        """Return the client and the flush group of the message at an index of the batch."""
        return self._senders[bisect_right(self._starts, index) - 1]

    def discard_reason(self, dropped: NoRoom) -> DiscardReason:
        """Return the discard reason of a message without room.

        If the batch goes to a spill file, only a failure of the file leaves messages without room; it ends the attempt.
        """
        return DiscardReason.ABANDONED_ATTEMPT if self.is_spilling else dropped.reason

    @property
    def is_spilling(self) -> bool:
        """Return True if the batch goes to the spill file of its attempt."""
        return self.attempt is not None and self.attempt.is_spilling

    @property
    def size(self) -> int:
        return sum(map(length_of, self.extents))

    def counts_by_flush_group(self) -> Iterable[tuple[StreamClientState, FlushGroup, int]]:
        """Yield the client, the flush group and the number of messages of each call of `add`."""
        ends = [*self._starts[1:], len(self.extents)]
        for (client, flush_group), start, end in zip(self._senders, self._starts, ends, strict=True):
            yield client, flush_group, end - start


def index_in_batch(arrival: int, first_number: int) -> int:
    """Return the index in a batch of the message with an arrival number.

    `first_number` is the number of the batch's first message: its arrival number without the flush group.
    """
    return lay.stream_number(arrival) - first_number


def join_extents(buffer: memoryview, extents: Sequence[tuple[int, int]]) -> memoryview | bytes:
    """Return the bytes of the messages at `extents`, without a copy if the messages are adjacent."""
    (start, _), (last_offset, last_length) = extents[0], extents[-1]
    end = last_offset + last_length
    if end - start == sum(map(length_of, extents)):
        return buffer[start:end]
    return b"".join([buffer[at : at + size] for at, size in extents])


def remove_over_share(ingested: Ingested) -> list[NoRoom]:
    """Remove from `ingested.no_room` the messages of topics over their shares, and return these messages."""
    over_share = DiscardReason.TOPIC_OVER_SHARE
    removed = [each for each in ingested.no_room if each.reason is over_share]
    ingested.no_room[:] = [each for each in ingested.no_room if each.reason is not over_share]
    return removed
