"""Fenced attempts: a client's messages between a begin and an end frame, delivered after the end frame or never.

The input appends the messages of an attempt to separate lanes of the slab and keeps them there.  The end frame
completes the attempt: the input hands all its messages over to the router.  If the connection ends earlier, the input
discards the messages.  How long an attempt holds its memory depends on its client, so all open attempts of a worker
together get a limited part of the slab.  Once an attempt reaches its limit, a topic in it reaches its share of the
slab, or the slab is full, its further messages go to a spill file (`slab/spill.py`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.discards.settlement import Discards
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.input.spills import SpillRoom
from bruce_mp.kernels import Lanes
from bruce_mp.protocol.client.fence import EndReason
from bruce_mp.slab import fences
from bruce_mp.slab import layout as lay
from bruce_mp.slab.handover_tickets import HandoverTickets
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import name_of, read_run
from bruce_mp.telemetry.books import counter_by_row
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.input.flush_groups import FlushGroup, FlushGroupOwner
    from bruce_mp.input.spills import Spills
    from bruce_mp.input.unique_attempts import UniqueAttempts
    from bruce_mp.protocol.client.fence import AttemptBegin
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.holdings import TopicKey
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.spill import SpillFile
    from bruce_mp.slab.tables import TopicTable
    from bruce_mp.slab.topic_thresholds import TopicThresholds

__all__ = ["NOT_ALLOWED", "NOT_UNDERSTOOD", "SHUTDOWN", "UNREAD", "Attempt", "Ending", "FencedAttempts"]

log = logging.getLogger(__name__)
_LINGER_MS: Final = 1 << 40
"""Linger of an attempt's lanes.  It is longer than any attempt, so no run is closed because its linger has passed."""
_MAX_NUMBER: Final = 0xFFFFFFFF
"""The largest attempt number that fits into a chunk header; 0 in the header = no attempt."""
_MAX_WAIT_MS: Final = 30_000
"""Longest wait of an attempt for room that spill files of other attempts hold; the oldest one waits without limit."""


class Ending(NamedTuple):
    """The reason why the daemon ends an attempt.

    `explanation` follows "The daemon ended the fenced attempt NAME: " in the log and in the frame to the client.
    """

    reason: EndReason
    explanation: str


SHUTDOWN: Final = Ending(
    EndReason.SHUTTING_DOWN, "the daemon shuts down, or makes way for a new version. Connect and send it again"
)
NOT_ALLOWED: Final = Ending(
    EndReason.NOT_ALLOWED, "allow_users and allow_groups of the socket no longer name the user of its client"
)
UNREAD: Final = Ending(EndReason.UNREAD_ANSWERS, "its client sends barriers and does not read the answers")
NOT_UNDERSTOOD: Final = Ending(
    EndReason.NOT_UNDERSTOOD,
    "its client sent neither a message nor a frame that is valid at that point, so the daemon cannot find the start of "
    "the next message",
)


def _spill_failed(error: Exception) -> Ending:
    return Ending(EndReason.SPILL_FAILED, f"its spill file cannot be written: {error}".rstrip("."))


class _NoHandover(HandoverTickets):
    """The ticket counter of an attempt's lanes.  It hands no run over, so closed runs keep the state OPEN."""

    def hand_over(self, run_at: int) -> None:
        pass


class _AttemptThresholds:
    """Allocates chunks for an attempt's lanes if their topic is within its threshold, the topic's share of the slab.

    An attempt's chunks count in the shares of their topics only after the attempt is completed.
    """

    def __init__(self, attempt: Attempt, thresholds: TopicThresholds) -> None:
        self._attempt = attempt
        self.allows, self.may_grow = thresholds.allows, thresholds.may_grow
        self.has_refused = False
        """True if the topic's threshold refused the last allocation; False if the attempt's limit or the pool did."""

    def allocate(self, topic: TopicKey, span: int, now_ms: int) -> int | None:
        """Allocate `span` neighboring chunks and return the first; None if a limit forbids it or there is no room."""
        self.has_refused = not self.allows(topic, span, now_ms)
        return None if self.has_refused else self._attempt.allocate(span, now_ms)

    def on_topics_changed(self) -> None:
        """Do nothing, because the chunks count in no topic's share before the attempt is completed."""


class Attempt:
    """One attempt, which is also the chunk pool of its lanes (`lane_chunks.ChunkSource`).

    The headers of its chunks have the attempt's number.
    """

    def __init__(
        self,
        attempts: FencedAttempts,
        number: int,
        begin: AttemptBegin,
        flush_group: FlushGroup,
        *,
        worker_lanes: Lanes,
        now_ms: int,
    ) -> None:
        self._attempts = attempts
        self._pool = attempts.pool
        self.owner, self.seal, self.allow_reclaim = self._pool.owner, self._pool.seal, self._pool.allow_reclaim
        self.name = begin.name
        self.keeps_timestamps = begin.keeps_timestamps
        self.is_unique = begin.is_unique
        self.number = number
        self.flush_group = flush_group
        self.began_ms = now_ms
        self.chunk_count = 0
        self.is_spilling = False
        """True after a message found no room: it and later messages go to `spill`."""
        self.spill: SpillFile | None = None
        self.waiting_since_ms: int | None = None
        """Time at which the attempt began to wait for room in spill files; None if it does not wait."""
        no_handover = _NoHandover(attempts.slab, self.owner)
        self.lanes = Lanes(
            attempts.slab,
            self,
            attempts.topics,
            lambda _: _LINGER_MS,
            no_handover,
            windows=worker_lanes.windows,
            partitioners=worker_lanes.partitioners,
            thresholds=_AttemptThresholds(self, attempts.thresholds),
        )
        self.lanes.caller_retries = True  # for messages over a topic's share, the caller retries or spills them

    def __str__(self) -> str:
        return self.name.decode("utf-8", "backslashreplace")

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Allocate `span` neighboring chunks and return the first; None above the attempt's limit, or without room.

        Then the attempt spills at once: a smaller message of the same batch could find room, and overtake this one.
        """
        self.is_spilling = self.is_spilling or not self._attempts.allows(span, self)
        chunk = None if self.is_spilling else self._pool.allocate(span, now_ms)
        if chunk is None:
            self._attempts.spill_if_possible(self)
        else:
            fences.assign_chunk(self._attempts.slab, chunk, self.number)
            self.chunk_count += span
        return chunk

    def can_spare(self, span: int) -> bool:
        """Return True if the pool can spare `span` neighboring chunks, and the attempt stays within its limit."""
        is_allowed = self._attempts.allows(span, self) and self._pool.can_spare(span)
        return is_allowed and self._pool.count_free_spans(span, 1) == 1


class FencedAttempts:
    """The open attempts of a worker: each may have `max_chunks` chunks, and all together `max_total_chunks`."""

    def __init__(
        self,
        slab: Slab,
        pool: ChunkPool,
        topics: TopicTable,
        *,
        thresholds: TopicThresholds,
        row: ProcessRow,
        reporter: DiscardReporter,
        spills: Spills,
        unique: UniqueAttempts,
        max_chunks: int,
        max_total_chunks: int,
    ) -> None:
        self._row = row
        self.slab = slab
        self.pool = pool
        self.topics = topics
        self.thresholds = thresholds
        self._discards = Discards(slab, row, reporter)
        self._reporter = reporter
        self._spills = spills
        self._unique = unique
        self._max_total_chunks = max_total_chunks
        self.apply_limits(max_chunks)
        self._open: set[Attempt] = set()
        self._last_number = 0

    def apply_limits(self, max_chunks: int) -> None:
        """Apply the limit for one attempt; 0 = `max_total_chunks`."""
        self._max_chunks = min(max_chunks or self._max_total_chunks, self._max_total_chunks)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, begin: AttemptBegin, client: FlushGroupOwner, worker_lanes: Lanes, now_ms: int) -> Attempt:
        """Open an attempt, with a number that no other attempt of this worker has in the slab or in spill files.

        The attempt uses the timestamp windows and partitioners of `worker_lanes`.
        """
        self._last_number = (self._last_number or self._spills.largest_number) % _MAX_NUMBER + 1
        self._unique.on_begin(client, begin)  # may replace `client.flush_group`
        attempt = Attempt(self, self._last_number, begin, client.flush_group, worker_lanes=worker_lanes, now_ms=now_ms)
        self._open.add(attempt)
        return attempt

    def allows(self, span: int, attempt: Attempt) -> bool:
        """Return True if the limits allow an attempt `span` more chunks."""
        total = sum(each.chunk_count for each in self._open)
        return attempt.chunk_count + span <= self._max_chunks and total + span <= self._max_total_chunks

    def spill_if_possible(self, attempt: Attempt) -> None:
        """Let the attempt's further messages go to its spill file: the slab is full, or a topic has reached its share.

        Do nothing if the bound on spill files leaves no room: `spill` would exceed the bound.  The messages then stay
        with their client.
        """
        attempt.is_spilling = attempt.is_spilling or self._spills.has_room

    # --- spilling ----------------------------------------------------------------------------------------------------

    def spill(self, attempt: Attempt, data: memoryview | bytes, message_count: int, arrived_ms: int) -> Ending | None:
        """Write whole messages to an attempt's spill file; return the reason for the attempt's end if the write fails.

        `arrived_ms` is the arrival time of the messages in ms since 1970.
        """
        if not self._spills.max_bytes:  # the configuration allows no spill files
            return Ending(
                EndReason.TOO_LARGE,
                f"it needs more than the {self._max_chunks * lay.CHUNK_BYTES >> 10} KiB of the slab that it may have, "
                "alone or with other open attempts, and input.streams.max_spill_size is 0. Raise "
                "input.streams.max_spill_size, slab.size or input.streams.max_attempt_size",
            )
        try:
            self._write(attempt, data, message_count, arrived_ms)
        except (OSError, SlabError) as error:
            return _spill_failed(error)
        return None

    def _write(self, attempt: Attempt, data: memoryview | bytes, message_count: int, arrived_ms: int) -> None:
        if attempt.spill is None:
            attempt.spill = self._spills.create(attempt.number, keeps_timestamps=attempt.keeps_timestamps)
            self._record_oldest()
        # Urgent: the messages are no longer in the client's `unprocessed`, so they cannot wait there.
        room = self._spills.extend(attempt.spill, len(data), is_urgent=True)
        if room is not SpillRoom.GRANTED:
            raise SlabError(room.value)
        attempt.spill.append(data, message_count, arrived_ms)

    def reserve_spill(self, attempt: Attempt, size: int, now_ms: int) -> SpillRoom | Ending:
        """Reserve `size` bytes in the spill file of an attempt that has one.

        Return GRANTED, or the limit for which the attempt must wait, or the reason for the attempt's end.
        """
        assert attempt.spill is not None
        room = self._spills.extend(attempt.spill, size)
        if room is SpillRoom.GRANTED:
            attempt.waiting_since_ms = None
            return room
        return self._wait_or_end(attempt, size, room, now_ms)

    def _wait_or_end(self, attempt: Attempt, size: int, room: SpillRoom, now_ms: int) -> SpillRoom | Ending:
        if attempt.waiting_since_ms is None:
            attempt.waiting_since_ms = now_ms
            self._row.add(Counter.StreamInputSpillFull)
            log.warning(
                "The fenced attempt %s waits for room, and its client is not read: %s. Spill files have %d MiB of "
                "%d MiB.",
                attempt,
                room.value,
                self._spills.reserved_bytes >> 20,
                self._spills.max_bytes >> 20,
                extra={"about": ("spill full", room)},  # limits repetitions: see telemetry/logs.py
            )
        assert attempt.spill is not None
        if room is SpillRoom.LIMIT_REACHED and attempt.spill.bytes_with(size) > self._spills.max_bytes:
            return Ending(
                EndReason.TOO_LARGE,
                f"it alone needs more than the {self._spills.max_bytes >> 20} MiB that spill files may have. Send "
                "smaller attempts, or raise input.streams.max_spill_size",
            )
        # Files of completed attempts are removed soon, and make room.  The oldest attempt waits without limit, so that
        # at least one attempt can be completed.
        if now_ms - attempt.waiting_since_ms < _MAX_WAIT_MS or self._spills.completed or self._is_oldest(attempt):
            return room
        return Ending(
            EndReason.NO_ROOM,
            f"it waited {_MAX_WAIT_MS // 1000} s for room that older open attempts hold, because {room.value}. Run "
            "fewer attempts at a time, or raise input.streams.max_spill_size",
        )

    def _is_oldest(self, attempt: Attempt) -> bool:
        """Return True if no older attempt of any worker has a spill file."""
        oldest_by_row = counter_by_row(self.slab, lay.SPILL_OLDEST)  # 0 in a row without a spill file
        return attempt.began_ms <= min(filter(None, oldest_by_row), default=0)

    def _record_oldest(self) -> None:
        """Store in the row the time at which the oldest open attempt with a spill file began; 0 = none."""
        starts_ms = [each.began_ms for each in self._open if each.spill is not None]
        self._row.counters[lay.SPILL_OLDEST] = min(starts_ms, default=0)

    # --- the end -----------------------------------------------------------------------------------------------------

    def complete(self, client: FlushGroupOwner, attempt: Attempt) -> list[Segment] | Ending:
        """Complete an attempt: hand its runs over, and queue its spill file; return the runs to publish.

        If a spill file cannot be written or `UniqueAttempts` refuses the attempt, return the reason for its end.
        """
        try:
            self._spills.store_completions()
            if attempt.spill is not None:
                attempt.spill.seal()
        except OSError as error:
            return _spill_failed(error)
        refusal = self._unique.prepare(client, attempt)
        if refusal is not None:
            reason, explanation = refusal
            return Ending(reason, explanation)
        runs = self._close(attempt)
        fences.complete_attempt(self.slab, self.pool.owner, attempt.number, runs, attempt.spill)
        for chunk in dict.fromkeys(segment.chunk for segment in runs):  # each chunk once
            span = self.slab.words[(self.slab.chunk_at(chunk) + lay.CHUNK_SPAN) >> 2]
            self.pool.holdings.adopt(self.slab, chunk, span)  # the chunks count in their topic's share from now on
        if attempt.spill is not None:
            self._spills.add_completed(attempt.spill, attempt.flush_group)
        self._unique.on_completed(client, attempt)
        return runs

    def abandon(self, attempt: Attempt) -> None:
        """Discard the messages of an attempt that ends without completion."""
        by_topic: defaultdict[bytes, list[Segment]] = defaultdict(list)
        for segment in self._close(attempt):
            by_topic[self._topic_of(segment)].append(segment)
        for topic, segments in by_topic.items():
            self._discards.settle(segments, DiscardReason.ABANDONED_ATTEMPT, topic)
        if attempt.spill is not None:
            self._abandon_spill(attempt, attempt.spill)

    def _abandon_spill(self, attempt: Attempt, file: SpillFile) -> None:
        reason = DiscardReason.ABANDONED_ATTEMPT
        increments = {lay.SPILL_OUT: file.message_count, discarded(reason): file.message_count}
        self._row.settle((), RunState.DISCARDED, reason, increments)
        attempt.flush_group.discard(reason, file.message_count)
        self._reporter.record(reason, count=file.message_count)
        if self._reporter.keeps_copies:
            # There are no copies, because nothing reads the file.
            self._row.add(Counter.MsgCopyLost, file.message_count)
        self._spills.remove_abandoned(file)

    def _close(self, attempt: Attempt) -> list[Segment]:
        """Close an attempt's lanes, and return their runs."""
        self._open.discard(attempt)
        self._record_oldest()
        attempt.lanes.close_all()
        return attempt.lanes.drain_closed()

    def _topic_of(self, segment: Segment) -> bytes:
        run = read_run(self.slab, segment.chunk, segment.run)
        if not run.topic:  # the topic had no number, so the run has its name
            return name_of(self.slab, segment.chunk, segment.run, run)
        return self.topics.name_of(run.topic) if self.topics.has(run.topic) else b""
