"""The free chunks of one input, and the choice of the next span.

A large slab has millions of chunks, so an allocation must not read the state of all of them.  It gets the span of its
length that was released last, whose memory may still be in the CPU's caches.  If there is none, a search begins where
the last one ended.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FreeChunks"]

_NONE_ABSENT: Final = 1 << 32
"""More than the number of chunks in any slab."""


class FreeChunks:
    """The free chunks in the shares of an input, which has no share yet; the slab has `chunk_count` chunks."""

    def __init__(self, chunk_count: int) -> None:
        self._used = bytearray(b"\1" * chunk_count)
        """For each chunk of the slab: 0 if it is free and in a share of this input, else 1."""
        self.count = 0
        """Number of free chunks."""
        self._released: defaultdict[int, list[int]] = defaultdict(list)
        """By length: the first chunk of each released span, the last released one at the end.  Since then, other spans
        may have got its chunks, or another input its share."""
        self._search_from = 0
        """The chunk at which the next search begins: the first chunk of the span that the last search found."""
        self._absent_span = _NONE_ABSENT
        """The shortest length for which a search has found no span, while none of that length has become free."""

    def add_share(self, chunks: range) -> None:
        """Add the chunks of a share that this input has claimed."""
        self._used[chunks.start : chunks.stop] = bytes(len(chunks))
        self.count += len(chunks)
        self._absent_span = _NONE_ABSENT

    def remove_unused_share(self, chunks: range) -> bool:
        """Remove the chunks of a share of this input; if one of them is in use, remove none and return False."""
        if self._used.find(1, chunks.start, chunks.stop) >= 0:
            return False
        self._used[chunks.start : chunks.stop] = b"\1" * len(chunks)
        self.count -= len(chunks)
        return True

    def adopt(self, chunk: int, span: int) -> None:
        """Record the use of a span by a predecessor or another input; not all its chunks need be in own shares."""
        self.count -= self._used.count(0, chunk, chunk + span)
        self._used[chunk : chunk + span] = b"\1" * span

    def use(self, chunk: int, span: int) -> None:
        """Record the use of a free span."""
        self._used[chunk : chunk + span] = b"\1" * span
        self.count -= span

    def release(self, chunk: int, span: int) -> None:
        """Record that a span is free again."""
        self._used[chunk : chunk + span] = bytes(span)
        self.count += span
        self._released[span].append(chunk)
        absent = self._absent_span
        if absent != _NONE_ABSENT:  # the release may have joined free chunks to a span of this length
            first, stop = max(0, chunk - absent + 1), chunk + span + absent - 1
            if self._used.find(bytes(absent), first, stop) >= 0:
                self._absent_span = _NONE_ABSENT

    def next_span(self, span: int) -> int | None:
        """Return the first chunk of a free span, for use now; None if there is none."""
        released = self._released[span]
        while released:
            chunk = released.pop()
            if self._used.find(1, chunk, chunk + span) < 0:
                return chunk
        return self.search(span)

    def search(self, span: int) -> int | None:
        """Return the first chunk of a free span, the next one behind the last search's; None if there is none."""
        if span > self.count or span >= self._absent_span:
            return None
        wanted = bytes(span)
        found = self._used.find(wanted, self._search_from)
        if found < 0:  # behind the last chunk, the search continues with the first
            found = self._used.find(wanted, 0, self._search_from + span - 1)
        if found < 0:
            self._absent_span = span
            return None
        self._search_from = found
        return found

    def search_with(self, unclaimed: Iterable[range], span: int) -> int | None:
        """Return the first chunk of a span that is free if this input claims free shares; None if there is none.

        `unclaimed` has the chunks of all free shares, those of neighboring shares in one range, in ascending order.
        Without further shares, this input must have no such span.
        """
        first = end = 0  # of the present range, together with the free chunks before it
        for chunks in unclaimed:
            first = self._used.rfind(1, end, chunks.start) + 1 or first  # 0: all chunks since the last range are free
            end = chunks.stop
            next_used = self._used.find(1, end)
            if (len(self._used) if next_used < 0 else next_used) - first >= span:
                return first
        return None

    def count_spans(self, span: int, limit: int) -> int:
        """Count the disjoint spans of `span` neighboring free chunks, up to `limit`."""
        chunk = self.search(span)
        if chunk is None:
            return 0
        first = self._used.rfind(1, 0, chunk) + 1  # of the free chunks around the found span
        found = self._count_spans_in(first, len(self._used), span, limit)
        return found + self._count_spans_in(0, first, span, limit - found)

    def _count_spans_in(self, chunk: int, stop: int, span: int, limit: int) -> int:
        """Count the disjoint free spans between two chunks, up to `limit`; no free span may cross the borders."""
        wanted, found = bytes(span), 0
        while found < limit and (chunk := self._used.find(wanted, chunk, stop)) >= 0:
            farthest = min(chunk + span * (limit - found), stop)
            first_used = self._used.find(1, chunk, farthest)
            end = farthest if first_used < 0 else first_used
            found, chunk = found + (end - chunk) // span, end
        return found
