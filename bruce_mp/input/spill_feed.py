"""Feeding of completed attempts from spill files back into the slab.

The feed appends a *slice* of a file, which is a number of consecutive messages, to the worker's ordinary lanes, as if
the client had sent the messages now.  Only the timestamp policy uses the time at which they arrived.  The files take
turns: each time, the feed serves one slice of the next file.

The order of the steps makes a crash harmless at any point.  First the worker stores the file's number in its process
row, then it appends the messages to lanes.  Then one transaction counts the messages, and stores the progress of the
file in the row.  Last the worker stores the same progress in the file's header.  The arrival numbers of the records
tell a successor which messages of the slice are in lanes (`pipeline/stream_recovery.py`).

If the topic of a message is over its share of the slab, the message waits: the daemon has accepted the message, so it
must not discard the message for that reason.  The other messages of the slice go to lanes, and the file's header lists
them (`fed_ahead`).  The file waits until the topic may hold more, and the feed serves other files.
"""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally  # `Counter` is the enum of telemetry
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.input.ingest_counters import increments_of_batch, processed_counter, report_no_room, report_rejected
from bruce_mp.input.stream_batch import index_in_batch, length_of
from bruce_mp.input.timestamps import warn_about_clock
from bruce_mp.kernels import split_stream
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.room import chunks_for, count_fitting_messages
from bruce_mp.slab.spill import MAX_SLICE_MESSAGES, wrapping_delta
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.input.flush_groups import FlushGroups
    from bruce_mp.input.spills import CompletedSpill, Spills
    from bruce_mp.input.stream_batch import Extents
    from bruce_mp.ipc.loop import Loop, Timer
    from bruce_mp.kernels import Ingested, Lanes, NoRoom
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.spill import SpillFile

__all__ = ["SpillFeed", "SpillPump"]

log = logging.getLogger(__name__)
_SLICE_BYTES: Final = 256 << 10
"""Maximum size of a slice in bytes, unless a single message is larger; clients wait for milliseconds at most."""
_FREE_DIVISOR: Final = 4
"""1/_FREE_DIVISOR of the usable chunks stays free for clients: the feed pauses unless more than that are free."""
_FEED_S: Final = 0.004
"""Time after which the feed returns to the process's loop."""
_RETRY_S: Final = 0.003
_MAX_RETRY_S: Final = 0.05
"""Interval of retries while the feed has files, but cannot feed a slice: it doubles from `_RETRY_S` to `_MAX_RETRY_S`,
because a stuck topic may keep a file waiting for hours."""
_PAUSE_MS: Final = 1000
"""Pause of a file after an error of the file system, or of the feed if the header of a file cannot be stored."""
_UNLIMITED_SIZE: Final = (1 << 31) - 1
"""In effect no limit on the size of a message: the size was checked before the message was spilled."""


class SpillPump:
    """The timer that feeds spill files between rounds of a worker's loop.

    `publish` hands over to the router the runs that are ready.
    """

    def __init__(self, loop: Loop, feed: SpillFeed, publish: Callable[[], None]) -> None:
        self._loop = loop
        self._feed = feed
        self._publish = publish
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S

    def start(self) -> None:
        """Schedule feeding after the present round of the loop."""
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._run)

    def _run(self) -> None:
        """Feed slices for `_FEED_S`, then return to the loop, which reads connections before the next call."""
        self._timer = None
        end_s = time.monotonic() + _FEED_S
        delay_s = 0.0
        while time.monotonic() < end_s:
            if not self._feed.feed(steady_ms()):
                delay_s, self._retry_s = self._retry_s, min(2 * self._retry_s, _MAX_RETRY_S)
                break
            self._retry_s = _RETRY_S
        self._publish()
        if len(self._feed):
            self._timer = self._loop.call_later(delay_s, self._run)


class SpillFeed:
    """Appends the messages of a worker's completed spill files to the worker's lanes."""

    def __init__(
        self,
        row: ProcessRow,
        lanes: Lanes,
        pool: ChunkPool,
        *,
        reporter: DiscardReporter,
        spills: Spills,
        flush_groups: FlushGroups,
    ) -> None:
        self._row = row
        self._lanes = lanes
        self._pool = pool
        self._reporter = reporter
        self._spills = spills
        self._flush_groups = flush_groups
        self._buffer = bytearray(_SLICE_BYTES)
        self._stuck_files: dict[SpillFile, tuple[bytes, int]] = {}
        """For each waiting file: the topic for which it waits, and the number of chunks that the topic needs."""
        self._paused_files: dict[SpillFile, int] = {}
        """For each file that could not be read or removed: the time of the next attempt."""
        self._paused_until_ms = 0

    def __len__(self) -> int:
        """Return the number of files that are not exhausted."""
        return len(self._spills.completed)

    def feed(self, now_ms: int) -> bool:
        """Feed a slice of the next file that does not wait; return False if there is none, or no room in the slab.

        After an error of the file system, log it and pause.  Only the header of a file stops the others: the row has
        what it lacks, and no other file may replace that.
        """
        if not self._spills.completed or now_ms < self._paused_until_ms:
            return False
        try:
            self._spills.store_overdue()
        except OSError as error:
            self._report(error)
            self._paused_until_ms = now_ms + _PAUSE_MS
            return False
        return self._feed_next(now_ms)

    def _report(self, error: OSError) -> None:
        log.error(
            "A spill file in %s cannot be read, written or removed: %s. Its messages stay held until it can: give "
            "the file system room, or repair it.",
            self._spills.directory,
            error.strerror,
            extra={"about": "spill feed"},  # limits repetitions: see telemetry/logs.py
        )

    def _feed_next(self, now_ms: int) -> bool:
        if not self._ensure_room():
            return False
        for completed in [each for each in self._spills.completed if self._may_resume(each.file, now_ms)]:
            try:
                if completed.file.is_exhausted or self._feed_slice(completed, now_ms):
                    self._requeue(completed)
                    return True
            except OSError as error:
                self._report(error)
                self._paused_files[completed.file] = now_ms + _PAUSE_MS
                return False  # the next call first stores what the header lacks
            if completed.file not in self._stuck_files:
                return False  # the slab has no room, so the other files need not be tried
        return False

    def _may_resume(self, file: SpillFile, now_ms: int) -> bool:
        """Return True if a file is not paused, and waits for no topic, or its topic may hold enough chunks now."""
        if now_ms < self._paused_files.get(file, 0):
            return False
        stuck = self._stuck_files.get(file)
        return stuck is None or self._lanes.may_grow(*stuck, now_ms)

    def _requeue(self, completed: CompletedSpill) -> None:
        """Move a file to the end of the queue, or remove it if it is exhausted."""
        if completed.file.is_exhausted:
            self._stuck_files.pop(completed.file, None)
            self._spills.remove_exhausted(completed)
            self._paused_files.pop(completed.file, None)
        else:
            self._spills.completed.remove(completed)
            self._spills.completed.append(completed)

    def _ensure_room(self) -> bool:
        """Return True if more chunks are free than the feed must leave to clients; reclaim chunks if necessary."""
        pool = self._pool
        reserved_count = pool.usable // _FREE_DIVISOR
        if pool.free_count <= reserved_count:
            pool.reclaim(reserved_count + 1)
        return pool.free_count > reserved_count

    def _feed_slice(self, completed: CompletedSpill, now_ms: int) -> bool:
        """Feed the next slice of a file, or discard the rest of a damaged file.

        Return False if no message was fed, because none found room.
        """
        view, extents = self._read(completed.file)
        if not extents:
            self._discard_damaged(completed)
            return True
        count = self._count_before_full(extents, completed.file.fed_ahead)
        return count > 0 and self._ingest(completed, view, extents[:count], now_ms)

    def _read(self, file: SpillFile) -> tuple[memoryview, Extents]:
        """Read a slice of a file; return the buffer and the extents of the messages in it, none if the file is damaged.

        If the next message is longer than the buffer, the buffer grows to the size of that message.
        """
        while True:
            view = memoryview(self._buffer)
            end = file.read(view)
            split = split_stream(view, 0, end, _UNLIMITED_SIZE)
            next_size = split.size  # that the next, incomplete message states; in a damaged file any number
            may_be_long = _SLICE_BYTES <= next_size <= file.end - file.offset
            if split.extents or not may_be_long or next_size <= len(self._buffer):
                return view, split.extents[:MAX_SLICE_MESSAGES]
            self._buffer = bytearray(next_size)

    def _count_before_full(self, extents: Extents, fed_ahead: frozenset[int]) -> int:
        """Return how many messages of a slice precede the first message without room.

        The messages with indexes in `fed_ahead` need no room, because they are in lanes already.
        """
        indexes = range(len(extents))
        unfed = [index for index in indexes if index not in fed_ahead] if fed_ahead else indexes
        fitting_count = self._count_fitting([length_of(extents[index]) for index in unfed]) if unfed else 0
        return len(extents) if fitting_count == len(unfed) else unfed[fitting_count]

    def _count_fitting(self, lengths: list[int]) -> int:
        """Return how many messages of these lengths certainly find room.

        Do not count messages after one that is larger than the pool.  If the first message is larger, return 1: the
        lanes then refuse this message, and the feed discards it.
        """
        capacity, largest = self._pool.capacity, max(lengths)
        if chunks_for(largest) > capacity:
            lengths = lengths[: next(index for index, size in enumerate(lengths) if chunks_for(size) > capacity)]
            if not lengths:
                return 1
            largest = max(lengths)
        return count_fitting_messages(self._pool, len(lengths), largest, lengths[0])

    def _ingest(self, completed: CompletedSpill, view: memoryview, extents: Extents, now_ms: int) -> bool:
        """Append the messages of a slice, and count them; return False if the lanes accepted none."""
        file, first_number = completed.file, self._row.counted  # the number of the slice's first message
        self._row.counters[lay.SPILL_FEEDING] = file.number
        self._row.begin_batch()
        ingested = self._append(completed, view, extents, now_ms)
        # The feed must not discard these messages, but append them later.
        waiting = [each for each in ingested.no_room if each.reason is DiscardReason.TOPIC_OVER_SHARE]
        self._record_stuck(file, waiting, extents, first_number)
        has_fed_beyond = max(file.fed_ahead, default=-1) >= len(extents)  # a message after the slice is in lanes
        if waiting or has_fed_beyond:
            return self._advance_partly(file, view, extents, ingested)
        # 0: the messages were counted as received when they were spilled.
        increments = increments_of_batch(0, ingested, [dropped.reason for dropped in ingested.no_room])
        last_offset, length = extents[-1]
        offset, fed_count = file.offset + last_offset + length, file.fed_count + len(extents)
        progress = {lay.SPILL_FED_ATTEMPT: file.number, lay.SPILL_FED_OFFSET: offset, lay.SPILL_FED_COUNT: fed_count}
        for counter, number in progress.items():
            increments[counter] = wrapping_delta(number - self._row.counters[counter])  # sets the counter to `number`
        self._count(file, +increments, message_count=len(extents) - len(file.fed_ahead), number_count=len(extents))
        file.advance_to(offset, fed_count)
        self._report_discarded(completed, view, extents, ingested, first_number)
        return True

    def _append(self, completed: CompletedSpill, view: memoryview, extents: Extents, now_ms: int) -> Ingested:
        lanes, file, first_number = self._lanes, completed.file, self._row.counted
        group_number = 0 if completed.flush_group is None else completed.flush_group.number
        skip = frozenset(lay.stream_arrival(first_number + index, group_number) for index in file.fed_ahead)
        before = lanes.wall_offset_ms, lanes.caller_retries
        # With this offset, the timestamp policy uses the time at which the messages arrived.  With `caller_retries`, no
        # message overtakes a refused one: the lanes also refuse the later messages of its topic, and the feed retries.
        lanes.wall_offset_ms, lanes.caller_retries = file.arrived_ms - now_ms, True
        try:
            return lanes.ingest(
                view,
                extents,
                first_number,
                now_ms,
                skip,
                sources=[group_number] * len(extents),
                keeps_timestamps=file.keeps_timestamps,
            )
        finally:
            lanes.wall_offset_ms, lanes.caller_retries = before
            self._record_replaced_timestamps()

    def _record_replaced_timestamps(self) -> None:
        for found in self._lanes.drain_replaced():
            self._row.add(Counter.InputAgentReplaceTimestamp, found.message_count)
            warn_about_clock(found, peer=None, unknown_sender="a fenced attempt")

    def _record_stuck(self, file: SpillFile, waiting: list[NoRoom], extents: Extents, first_number: int) -> None:
        """Record that a file waits for the topic of its first waiting message, or that it does not wait."""
        self._stuck_files.pop(file, None)
        if waiting:
            topic = min(waiting, key=attrgetter("arrival")).topic
            indexes = [index_in_batch(each.arrival, first_number) for each in waiting if each.topic == topic]
            sizes = [length_of(extents[index]) for index in indexes]
            self._stuck_files[file] = topic, chunks_for(sum(sizes))

    def _advance_partly(self, file: SpillFile, view: memoryview, extents: Extents, ingested: Ingested) -> bool:
        """Count the messages that the lanes accepted, and return True if there were any.

        The file's offset does not change, so the next feed repeats the other messages of the slice.  Rejected messages
        are among these: they are counted when the whole slice is.
        """
        first_number = self._row.counted
        not_added = {rejection.slot for rejection in ingested.rejections}  # indexes in the slice
        not_added.update(index_in_batch(each.arrival, first_number) for each in ingested.no_room)
        added = [index for index in range(len(extents)) if index not in not_added and index not in file.fed_ahead]
        if added:
            # Before the count: otherwise, after a crash, a successor could feed counted messages again.
            file.store_fed_ahead(added)
        increments = Tally[int](processed_counter(view[at : at + size]) for at, size in map(extents.__getitem__, added))
        self._count(file, increments, message_count=len(added), number_count=len(extents))
        return bool(added)

    def _count(self, file: SpillFile, increments: Mapping[int, int], *, message_count: int, number_count: int) -> None:
        """In one transaction, count the messages that left a file, and use up `number_count` arrival numbers."""
        spill_increments = {
            lay.SPILL_OUT: message_count,
            lay.SPILL_COMPLETED: wrapping_delta(-message_count),
            lay.SPILL_FEEDING: wrapping_delta(-file.number),  # back to 0
        }
        self._row.commit_counted(self._row.counted + number_count, {**increments, **spill_increments})

    def _report_discarded(
        self, completed: CompletedSpill, view: memoryview, extents: Extents, ingested: Ingested, first_number: int
    ) -> None:
        for rejection in ingested.rejections:
            report_rejected(self._reporter, rejection, view, extents[rejection.slot])
            self._discard(completed, DiscardReason(rejection.failure), 1)
        for dropped in ingested.no_room:
            extent = extents[index_in_batch(dropped.arrival, first_number)]
            report_no_room(self._reporter, dropped, view, extent, dropped.reason)
            self._discard(completed, dropped.reason, 1)

    def _discard(self, completed: CompletedSpill, reason: DiscardReason, count: int) -> None:
        if completed.flush_group is not None:
            completed.flush_group.discard(reason, count)
            self._flush_groups.remove_if_finished(completed.flush_group)

    def _discard_damaged(self, completed: CompletedSpill) -> None:
        """Discard the rest of a damaged file, and log the number of lost messages."""
        file, reason = completed.file, DiscardReason.SPILL_LOST
        lost_count = file.remaining_count
        log.error(
            "The spill file %s is damaged at byte %d: %d messages of a complete attempt are lost.",
            file.path,
            file.offset,
            lost_count,
        )
        increments = {
            lay.SPILL_OUT: lost_count,
            lay.SPILL_COMPLETED: wrapping_delta(-lost_count),
            discarded(reason): lost_count,
        }
        self._row.settle((), RunState.DISCARDED, reason, increments)
        self._reporter.record(reason, count=lost_count)
        self._discard(completed, reason, lost_count)
        file.advance_to(file.end, file.message_count)
