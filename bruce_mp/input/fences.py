"""Fenced attempts: what a client sends between a begin and an end frame is delivered when the end has come, or never.

The messages go into the slab at once, in lanes of the attempt's own, and are held.  The end frame releases them all; a
connection that ends before it has them discarded.  All open attempts of a worker together may take a part of the slab
that is small enough for everybody else to go on: attempts wait for their clients, and nobody else can make room.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import Lanes
from bruce_mp.slab import fences
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import name_of, read_run
from bruce_mp.slab.tickets import TicketOffice

if TYPE_CHECKING:
    from bruce_mp.discarding import Discards
    from bruce_mp.kernels import Windows
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import TopicTable

__all__ = ["Attempt", "Attempts"]

_LOG: Final = logging.getLogger(__name__)
_NEVER_MS: Final = 1 << 40


class _Withheld(TicketOffice):
    """Hands nothing over: the runs stay with the input."""

    def hand_over(self, run_at: int) -> None:
        pass


class Attempt:
    """One attempt.  Closed runs of its lanes stay OPEN in the slab, in chunks that bear its number."""

    def __init__(self, attempts: Attempts, name: bytes, number: int, windows: Windows) -> None:
        self._attempts = attempts
        self._pool = attempts.pool
        self.owner = attempts.pool.owner
        self.name = name
        self.number = number
        self.chunks = 0
        self.is_over = False
        """It was larger than allowed: some of it found no room."""
        withheld = _Withheld(attempts.slab, self.owner)
        self.lanes = Lanes(attempts.slab, self, attempts.topics, lambda _: _NEVER_MS, withheld, windows=windows)

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Chunks for its lanes, as long as it is not too large."""
        self.is_over = self.is_over or not self._attempts.allow(span, self)
        chunk = None if self.is_over else self._pool.allocate(span, now_ms)
        if chunk is not None:
            fences.mark_chunk(self._attempts.slab, chunk, self.number)
            self.chunks += span
        return chunk

    def can_spare(self, span: int) -> bool:
        """See `ChunkPool`; it may not make the attempt too large either."""
        return self._attempts.allow(span, self) and self._pool.can_spare(span)

    def seal(self, chunk: int) -> None:
        """See `ChunkPool`."""
        self._pool.seal(chunk)

    def release_seals(self) -> None:
        """See `ChunkPool`."""
        self._pool.release_seals()


class Attempts:
    """The open attempts of a worker.

    `most` are the chunks that one may have, `most_together` those of all.
    """

    def __init__(
        self, slab: Slab, pool: ChunkPool, topics: TopicTable, discards: Discards, *, most: int, most_together: int
    ) -> None:
        self.slab = slab
        self.pool = pool
        self.topics = topics
        self._discards = discards
        self._most_together = most_together
        self.limit(most)
        self._open: set[Attempt] = set()
        self._last = 0

    def limit(self, most: int) -> None:
        """From now on an attempt may have so many chunks; 0: as many as all together."""
        self._most = min(most or self._most_together, self._most_together)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, name: bytes, windows: Windows) -> Attempt:
        """A new attempt; its number is unique among those of this worker that are in the slab.

        `windows` gives the timestamps that its messages may have.
        """
        self._last = self._last % 0xFFFFFFFF + 1
        attempt = Attempt(self, name, self._last, windows)
        self._open.add(attempt)
        return attempt

    def allow(self, span: int, attempt: Attempt) -> bool:
        """Whether an attempt may have so many more chunks."""
        together = sum(each.chunks for each in self._open)
        return attempt.chunks + span <= self._most and together + span <= self._most_together

    def release(self, attempt: Attempt) -> list[Segment]:
        """The attempt is complete: its runs, of which the router must hear."""
        runs = self._close(attempt)
        fences.release(self.slab, self.pool.owner, attempt.number, runs)
        return runs

    def abandon(self, attempt: Attempt) -> None:
        """The attempt will never be complete: discard what there is of it."""
        by_topic: defaultdict[bytes, list[Segment]] = defaultdict(list)
        for segment in self._close(attempt):
            by_topic[self._topic_of(segment)].append(segment)
        for topic, segments in by_topic.items():
            self._discards.settle(segments, DiscardReason.ABANDONED_ATTEMPT, topic)
        if attempt.is_over:
            _LOG.error(
                "The fenced attempt %s needs more than the %d KiB of the slab that it may have, alone or with others "
                "that are open: it is discarded, its connection closed. Send smaller attempts, or raise slab.size or "
                "input.streams.max_attempt_size.",
                attempt.name.decode("utf-8", "backslashreplace"),
                self._most * lay.CHUNK_BYTES >> 10,
                extra={"about": "attempt too large"},
            )

    def _close(self, attempt: Attempt) -> list[Segment]:
        self._open.discard(attempt)
        attempt.lanes.close_all()
        return attempt.lanes.drain_closed()

    def _topic_of(self, segment: Segment) -> bytes:
        run = read_run(self.slab, segment.chunk, segment.run)
        if not run.topic:
            return name_of(self.slab, segment.chunk, segment.run, run)
        try:
            return self.topics.name_of(run.topic)
        except KeyError:
            return b""
