"""How the messages of complete attempts come back from spill files into the slab.

A slice of a file goes through the worker's ordinary lanes, as if its client had sent it now.  In the order of the
steps a death is safe anywhere: first the row says which file is fed, then the records are in lanes, then one
transaction counts them and notes how far the file is, then the file's header says the same.  A successor finds by
the arrival numbers which messages of the slice are in lanes (`telemetry/receipts.py`).

Released files take turns, a slice each.  They leave a part of the slab to clients that send at the same time.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.input.pressure import chunks_for, messages_that_fit
from bruce_mp.input.tallies import report, report_no_room, tally_ingested
from bruce_mp.kernels import cut
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State
from bruce_mp.slab.spill import LONGEST_SLICE, delta
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.input.outcomes import Sections
    from bruce_mp.input.spills import Released, Spills
    from bruce_mp.kernels import Ingested, Lanes
    from bruce_mp.pipes.loop import Loop, Timer
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.spill import SpillFile
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["SpillFeed", "SpillPump"]

_LOG: Final = logging.getLogger(__name__)
_SLICE: Final = 256 << 10
_LEFT_TO_OTHERS: Final = 4
"""Nothing is fed while less than one part in so many of the usable slab is free."""
_MOMENT_S: Final = 0.004
_NO_ROOM_S: Final = 0.003
_ANY_SIZE: Final = (1 << 31) - 1

Places = list[tuple[int, int]]


class SpillPump:
    """Has spill files fed in the time that a worker's loop has for it.  `hand_on` tells the router of runs."""

    def __init__(self, loop: Loop, feed: SpillFeed, hand_on: Callable[[], None]) -> None:
        self._loop = loop
        self._feed = feed
        self._hand_on = hand_on
        self._timer: Timer | None = None

    def start(self) -> None:
        """Feed what there is, once what is under way is done."""
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._run)

    def _run(self) -> None:
        """Feed slices for a moment; between two such moments the connections have their turn."""
        self._timer = None
        until = time.monotonic() + _MOMENT_S
        while (is_fed := self._feed.feed(steady_ms())) and time.monotonic() < until:
            pass
        self._hand_on()
        if len(self._feed):
            self._timer = self._loop.call_later(0 if is_fed else _NO_ROOM_S, self._run)


class SpillFeed:
    """Feeds the released files of a worker."""

    def __init__(
        self,
        row: Row,
        lanes: Lanes,
        pool: ChunkPool,
        *,
        reporter: DiscardReporter,
        spills: Spills,
        sections: Sections,
    ) -> None:
        self._row = row
        self._lanes = lanes
        self._pool = pool
        self._reporter = reporter
        self._spills = spills
        self._sections = sections
        self._buffer = bytearray(_SLICE)

    def __len__(self) -> int:
        """Files that are not exhausted."""
        return len(self._spills.released)

    def feed(self, now_ms: int) -> bool:
        """Put a slice of the next file into lanes; False if there is no room, or nothing to feed."""
        released = self._spills.released
        if not released or not self._has_room:
            return False
        each = released[0]
        is_fed = each.file.is_exhausted or self._feed_slice(each, now_ms)
        if is_fed:
            released.popleft()
            if each.file.is_exhausted:
                self._spills.remove(each.file)
            else:
                released.append(each)
        return is_fed

    @property
    def _has_room(self) -> bool:
        pool = self._pool
        kept = pool.usable // _LEFT_TO_OTHERS
        if pool.free_count <= kept:
            pool.reclaim(kept + 1)
        return pool.free_count > kept

    def _feed_slice(self, each: Released, now_ms: int) -> bool:
        view, places = self._read(each.file)
        if not places:
            self._lose(each)
            return True
        count = self._room(places)
        if count <= max(each.file.landed, default=-1):
            return False  # a dead worker put more into lanes: the slice has to be as long again
        if count:
            self._ingest(each, view, places[:count], now_ms)
        return count > 0

    def _read(self, file: SpillFile) -> tuple[memoryview, Places]:
        """The next frames of a file; none if it is damaged."""
        while True:
            view = memoryview(self._buffer)
            found = cut(view, 0, file.read(view), _ANY_SIZE)
            if found.places or not _SLICE <= found.size <= file.end - file.offset or found.size <= len(self._buffer):
                return view, found.places[:LONGEST_SLICE]
            self._buffer = bytearray(found.size)

    def _room(self, places: Places) -> int:
        """How many of these messages find room for certain; a message that never does is let through."""
        lengths = [length for _, length in places]
        if chunks_for(lengths[0]) > self._pool.capacity:
            return 1
        fitting = next((at for at, size in enumerate(lengths) if chunks_for(size) > self._pool.capacity), len(lengths))
        return messages_that_fit(self._pool, fitting, max(lengths[:fitting]), lengths[0])

    def _ingest(self, each: Released, view: memoryview, places: Places, now_ms: int) -> None:
        file, source = each.file, 0 if each.section is None else each.section.number
        first = self._row.counted
        landed = file.landed
        skip = frozenset(lay.stream_arrival(first + index, source) for index in landed)
        self._row.counters[lay.SPILL_FEEDING] = file.number
        self._row.open_books()
        ingested = self._lanes.ingest(view, places, first, now_ms, skip, sources=[source] * len(places))
        count = len(places) - len(landed)
        raises = tally_ingested(count, ingested, [dropped.reason for dropped in ingested.no_room])
        del raises[Counter.MsgReceived]
        at, length = places[-1]
        offset, fed = file.offset + at + length, file.fed + len(places)
        counters = self._row.counters
        progress = {
            lay.SPILL_OUT: count,
            lay.SPILL_RELEASED: delta(-count),
            lay.SPILL_FEEDING: delta(-file.number),
            lay.SPILL_FED_ATTEMPT: delta(file.number - counters[lay.SPILL_FED_ATTEMPT]),
            lay.SPILL_FED_OFFSET: delta(offset - counters[lay.SPILL_FED_OFFSET]),
            lay.SPILL_FED_COUNT: delta(fed - counters[lay.SPILL_FED_COUNT]),
        }
        self._row.count(first + len(places), {**+raises, **progress})
        file.move_to(offset, fed)
        self._note_refused(each, view, places, ingested, first)

    def _note_refused(self, each: Released, view: memoryview, places: Places, ingested: Ingested, first: int) -> None:
        for rejection in ingested.rejections:
            report(self._reporter, rejection, view, places[rejection.slot])
            self._discard(each, DiscardReason(rejection.failure), 1)
        for dropped in ingested.no_room:
            place = places[lay.stream_number(dropped.arrival) - first]
            report_no_room(self._reporter, dropped, view, place, dropped.reason)
            self._discard(each, dropped.reason, 1)

    def _discard(self, each: Released, reason: DiscardReason, count: int) -> None:
        if each.section is not None:
            each.section.discard(reason, count)
            self._sections.look(each.section)

    def _lose(self, each: Released) -> None:
        """The rest of a file is damaged."""
        file, reason = each.file, DiscardReason.SPILL_LOST
        lost = file.remaining
        _LOG.error(
            "The spill file %s is damaged at byte %d: %d messages of a complete attempt are lost.",
            file.path,
            file.offset,
            lost,
        )
        raises = {lay.SPILL_OUT: lost, lay.SPILL_RELEASED: delta(-lost), discarded(reason): lost}
        self._row.settle((), State.DISCARDED, reason, raises)
        self._reporter.note(reason, count=lost)
        self._discard(each, reason, lost)
        file.move_to(file.end, file.messages)
