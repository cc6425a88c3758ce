"""Messages of stream clients on their way into lanes together: portions of a buffer, and batches of whole messages."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.input.clients import StreamClientState
    from bruce_mp.input.fenced_attempts import Attempt
    from bruce_mp.input.sections import ConnectionSection
    from bruce_mp.kernels import NoRoom

__all__ = ["Portion", "StreamBatch"]

_length: Final = itemgetter(1)


class Portion(NamedTuple):
    """What a client sent: the bytes of the buffer from `begin` to `end`."""

    client: StreamClientState
    begin: int
    end: int


class StreamBatch:
    """Messages that are taken in together, with the client and section of each stretch of them.

    Those of an `attempt` have no others among them.  With `is_explicit` all of them keep their timestamps.
    """

    def __init__(self, attempt: Attempt | None = None, *, is_explicit: bool = False) -> None:
        self.attempt = attempt
        self.is_explicit = is_explicit
        self.places: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.largest = 0
        """Bytes that no message exceeds, where the caller of `add` knows them."""
        self._starts: list[int] = []
        self._senders: list[tuple[StreamClientState, ConnectionSection]] = []

    def add(self, client: StreamClientState, places: list[tuple[int, int]], largest: int = 0) -> None:
        """Add messages of a client, none longer than `largest` bytes; 0 = unknown."""
        if places:
            self._starts.append(len(self.places))
            self._senders.append((client, client.section))
            self.places += places
            self.sources += [client.section.number] * len(places)
            self.largest = max(self.largest, largest)

    def sender(self, index: int) -> tuple[StreamClientState, ConnectionSection]:
        return self._senders[bisect_right(self._starts, index) - 1]

    def why_no_room(self, dropped: NoRoom) -> DiscardReason:
        """Why a message found no room."""
        return DiscardReason.ABANDONED_ATTEMPT if self.overflows else dropped.reason

    @property
    def overflows(self) -> bool:
        """Whether the attempt has as much of the slab as it may have."""
        return self.attempt is not None and self.attempt.overflows

    @property
    def size(self) -> int:
        """Bytes of the messages."""
        return sum(map(_length, self.places))

    def stretches(self) -> Iterable[tuple[StreamClientState, ConnectionSection, int]]:
        """Each client and section with how many messages it has."""
        ends = [*self._starts[1:], len(self.places)]
        for (client, section), start, end in zip(self._senders, self._starts, ends, strict=True):
            yield client, section, end - start
