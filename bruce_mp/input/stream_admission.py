"""Admission of stream data: the path of received bytes into lanes, without the sockets.

The bytes of many connections lie in one buffer.  `StreamAdmission` splits them into messages.  It then parses, appends
and counts the messages of all connections as one batch.  The order of the steps makes a crash harmless at any point, as
for datagrams.  First the lanes hold the records, then one transaction counts them, then the worker publishes the runs.
A successor counts the records that no transaction has counted.  Bytes that are in no lane are lost with their
connection.

Where senders wait for room (`when_full = "block"`), a message is appended only when it certainly finds room.  Otherwise
it stays in the client's `unprocessed`, and the worker stops reading from that client for now.  The same happens to:

* messages beyond a user's quota, until the next interval;
* messages of a topic over its share of the slab: the lanes append the rest of the batch, and return these messages;
* messages of a fenced attempt for which neither the slab nor a spill file (`slab/spill.py`) has room;
* messages behind an attempt with a spill file that is not yet fed back into the slab.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.input.fenced_attempts import NOT_UNDERSTOOD, Ending
from bruce_mp.input.ingest_counters import (
    increments_of_batch,
    processed_counter,
    report_no_room,
    report_rejected,
    unappended_count,
)
from bruce_mp.input.spills import SpillRoom
from bruce_mp.input.stream_batch import StreamBatch, index_in_batch, join_extents, length_of, remove_over_share
from bruce_mp.input.stream_client import TCP
from bruce_mp.input.timestamps import warn_about_clock
from bruce_mp.input.unfinished_limits import MIN_READ
from bruce_mp.kernels import SplitStop, split_stream
from bruce_mp.protocol.client.fence import decode_begin, encode_ended, is_end
from bruce_mp.slab import layout as lay
from bruce_mp.slab.room import chunks_for
from bruce_mp.slab.sender_usage import SenderSums
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections import Counter as Tally
    from collections.abc import Callable, Collection

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.input.fenced_attempts import Attempt, FencedAttempts
    from bruce_mp.input.sender_quotas import SenderQuotas
    from bruce_mp.input.stream_batch import ClientExtents, Extents, Portion
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.kernels import Ingested, Lanes, NoRoom, StreamSplit, TopicReplacements
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["StreamAdmission"]

log = logging.getLogger(__name__)
_SPILL_RETRY_MS: Final = 20
"""Interval of retries for a client that waits for room in spill files, or for the feed of its last attempt's file."""


class StreamAdmission:
    """Admits the data of stream clients to the lanes.

    `max_size` is the largest size of a message.  The admission calls `on_barrier(client, frame)` for each barrier after
    it has appended all earlier messages, and `on_completed(runs)` with the runs of a completed attempt.
    """

    def __init__(
        self,
        row: ProcessRow,
        lanes: Lanes,
        pool: ChunkPool,
        reporter: DiscardReporter,
        on_barrier: Callable[[StreamClientState, bytes], None],
        *,
        attempts: FencedAttempts,
        on_completed: Callable[[list[Segment]], None],
        max_size: int,
        blocks: bool,
        quotas: SenderQuotas,
    ) -> None:
        self._row = row
        self._lanes = lanes
        self._pool = pool
        self._reporter = reporter
        self._on_barrier = on_barrier
        self._attempts = attempts
        self._on_completed = on_completed
        self._quotas = quotas
        self.apply_limits(max_size, blocks=blocks)

    def apply_limits(self, max_size: int, *, blocks: bool) -> None:
        """Apply a reloaded size limit; `blocks` makes clients wait for room."""
        self._max_size = max_size
        self._blocks = blocks
        self._lanes.caller_retries = blocks  # lanes then also refuse later messages of a refused topic, in order

    def admit(self, buffer: memoryview, portions: Collection[Portion], now_ms: int) -> None:
        """Append the whole messages of each portion; its remaining bytes become the client's `unprocessed`."""
        batch = StreamBatch()
        for portion in portions:
            batch = self._admit_portion(buffer, portion, batch, now_ms)
        self._append_batch(buffer, batch, now_ms)
        for client, _, _ in portions:
            if client.postponed:
                self._requeue_postponed(client)

    def _requeue_postponed(self, client: StreamClientState) -> None:
        """Put postponed messages before `unprocessed`, and pause the client until their topic may hold more."""
        client.unprocessed[:0] = client.postponed
        client.postponed = bytearray()
        client.block()
        self._row.add(Counter.StreamInputTopicOverShare)

    def is_plain(self, client: StreamClientState) -> bool:
        """Return True if `StreamIntake` may serve a client, because its messages need only be appended to lanes.

        The intake keeps the beginning of an incomplete message itself, unless that message is longer than `MIN_READ`.
        """
        is_spilling = client.attempt is not None and client.attempt.is_spilling
        is_waiting = client.is_blocked or client.counted_in_quota or client.completed_spill
        is_special = client.must_close or client.keeps_timestamps or client.wanted > MIN_READ
        return not (is_spilling or is_waiting or is_special or self._quotas.is_active)

    def may_resume(self, client: StreamClientState, now_ms: int) -> bool:
        """Return True if a retry of a paused client may succeed: its stuck topic, if it has one, may hold more."""
        if not self._blocks or not client.stuck_topic:
            return True
        return self._lanes.may_grow(client.stuck_topic, chunks_for(len(client.unprocessed)), now_ms)

    def _admit_portion(self, buffer: memoryview, portion: Portion, batch: StreamBatch, now_ms: int) -> StreamBatch:
        """Split a client's bytes, add its messages to a batch and handle its frames; return the batch to add more to.

        Stop at incomplete or malformed data, or at the first message that must wait.
        """
        client, at, end = portion
        client.is_blocked, client.paused_until_ms, client.stuck_topic = False, 0, b""
        batch = self._batch_for(buffer, client, batch, now_ms)
        while not client.must_close:
            split = split_stream(buffer, at, end, self._max_size)
            if self._pause_behind_spill(client, split, now_ms):
                break
            batch, added_count = self._add_allowed(buffer, batch, client, split.extents, now_ms)
            if added_count < len(split.extents):
                at, _ = split.extents[added_count]
                client.block(client.paused_until_ms)  # `_add_allowed` may have set a time
                break
            at, client.wanted = split.at, split.size  # of the frame or incomplete message behind the whole messages
            if split.stop not in {SplitStop.BARRIER, SplitStop.FENCE}:
                break
            self._append_batch(buffer, batch, now_ms)
            batch = StreamBatch()
            if not self._handle_frame(client, split.stop, bytes(buffer[at : at + split.size]), now_ms):
                break
            batch = StreamBatch(client.attempt, keeps_timestamps=client.keeps_timestamps)
            at += split.size
        if client.must_close:
            return StreamBatch()  # all earlier messages are appended already
        client.unprocessed = bytearray(buffer[at:end])
        if client.is_blocked or split.stop is SplitStop.MORE:
            return batch
        self._append_batch(buffer, batch, now_ms)
        if not client.postponed:  # else the split stopped at a frame that waits for the postponed messages
            self._on_malformed(client, split.stop)
        return StreamBatch()

    def _add_allowed(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add messages until quota or room forbids the next one; pause the client if the quota forbids it.

        Return the batch for the next messages, and the number of messages added.
        """
        allowed_count = self._count_allowed(client, len(extents), now_ms)
        batch, added_count = self._add_to_batch(buffer, batch, client, extents[:allowed_count], now_ms)
        self._count_in_quota(client, added_count, now_ms)
        if added_count == allowed_count < len(extents) and not client.must_close and not client.postponed:
            self._pause_for_quota(client, now_ms)
        return batch, added_count

    def _batch_for(self, buffer: memoryview, client: StreamClientState, batch: StreamBatch, now_ms: int) -> StreamBatch:
        """Return `batch` if it has the client's attempt and `keeps_timestamps`; otherwise return a new batch."""
        if batch.attempt is client.attempt and batch.keeps_timestamps == client.keeps_timestamps:
            return batch
        self._append_batch(buffer, batch, now_ms)
        return StreamBatch(client.attempt, keeps_timestamps=client.keeps_timestamps)

    def _pause_behind_spill(self, client: StreamClientState, split: StreamSplit, now_ms: int) -> bool:
        """Pause a client until its last attempt's spill file is fed back; return True if the client is paused."""
        if client.completed_spill is not None and client.completed_spill.is_closed:  # it is fed back
            client.completed_spill = None
        has_messages_or_fence = split.extents or split.stop is SplitStop.FENCE  # a barrier alone need not wait
        if client.completed_spill is None or not has_messages_or_fence:
            return False
        client.block(now_ms + _SPILL_RETRY_MS)
        return True

    def _handle_frame(self, client: StreamClientState, stop: SplitStop, frame: bytes, now_ms: int) -> bool:
        """Handle a barrier, begin or end frame; return False if it is misplaced, or must wait for earlier messages."""
        if client.postponed:
            return False  # messages behind the frame must not overtake the postponed ones before it
        if client.must_close:
            return True  # `_admit_portion` ends its loop then
        if stop is SplitStop.BARRIER:
            self._on_barrier(client, frame)
            return True
        begin, attempt = decode_begin(frame), client.attempt
        if attempt is None and begin is not None:
            client.attempt = self._attempts.open(begin, client, self._lanes, now_ms)
            client.keeps_timestamps = begin.keeps_timestamps
            return True
        if attempt is not None and is_end(frame):
            self._complete(client, attempt)
            return True
        return False

    def _complete(self, client: StreamClientState, attempt: Attempt) -> None:
        """Complete an attempt, or end it if an earlier attempt has its unique name."""
        self._lanes.close_runs()  # the router must get the earlier messages of the connection first
        result = self._attempts.complete(client, attempt)
        if isinstance(result, Ending):
            self._end_attempt(client, result)
        else:
            client.attempt, client.completed_spill = None, attempt.spill
            self._on_completed(result)

    def abandon(self, client: StreamClientState, ending: Ending | None = None) -> None:
        """Discard the client's open attempt; with `ending`, prepare the frame that tells the client why."""
        attempt, client.attempt = client.attempt, None
        if attempt is None:
            return
        if ending is not None:
            text = f"The daemon ended the fenced attempt {attempt}: {ending.explanation}. Nothing of it is delivered."
            client.final_frame = encode_ended(ending.reason, text)
            log.error("%s", text, extra={"about": ("attempt ended", ending.reason)})  # "about": see telemetry/logs.py
        self._attempts.abandon(attempt)

    def _end_attempt(self, client: StreamClientState, ending: Ending) -> None:
        """End a client's open attempt, and stop reading the client."""
        client.must_close = True
        self.abandon(client, ending)

    def _count_allowed(self, client: StreamClientState, count: int, now_ms: int) -> int:
        """Return the number of a client's next `count` messages that its user's quota allows in this interval.

        Postponed messages are always allowed, because the quota counts them already.
        """
        remaining = self._quotas.remaining(client.user, now_ms) if count else None
        return count if remaining is None else min(remaining + client.counted_in_quota, count)

    def _count_in_quota(self, client: StreamClientState, added_count: int, now_ms: int) -> None:
        """Count added messages in the user's quota, except for postponed ones, which it counts already."""
        counted_before = min(added_count, client.counted_in_quota)
        client.counted_in_quota -= counted_before
        if added_count > counted_before and self._quotas.is_active:
            self._quotas.record_received(client.user, added_count - counted_before, now_ms)

    def _pause_for_quota(self, client: StreamClientState, now_ms: int) -> None:
        """Pause a client until the next interval of its user's quota."""
        client.paused_until_ms = self._quotas.next_interval_start_ms(now_ms)
        self._quotas.warn_over_quota(client.user, "connections are not read before the next interval")
        self._quotas.add_sums(client.user, SenderSums(waited=1), now_ms)
        self._row.add(Counter.StreamInputOverQuota)

    def _add_to_batch(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add messages while they find room; return the batch for the next ones, and the number of messages added."""
        if batch.is_spilling:
            return self._add_to_spill(buffer, batch, client, extents, now_ms)
        if not self._blocks:
            batch.add(client, extents)
            return batch, len(extents)
        added_count = 0
        while added_count < len(extents):
            more = extents[added_count:] if added_count else extents
            largest = max(map(length_of, more))
            room = batch.room_for(self._pool, more, largest)
            if not room and batch.extents:  # the estimate of room is cautious: append, and estimate again
                self._append_batch(buffer, batch, now_ms)
                batch = StreamBatch(batch.attempt, keeps_timestamps=batch.keeps_timestamps)
                if client.must_close or client.postponed:
                    return batch, added_count
                continue
            if not room:
                break
            batch.add(client, more if room >= len(more) else more[:room], largest)
            added_count += room
        return batch, added_count

    def _add_to_spill(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add all messages to a batch for a spill file.

        If spill files have no room, add none: the client waits, or its attempt ends.
        """
        attempt = batch.attempt
        assert attempt is not None  # only attempts spill
        size = batch.size + sum(map(length_of, extents))
        result = self._attempts.reserve_spill(attempt, size, now_ms) if extents else SpillRoom.GRANTED
        if result is SpillRoom.GRANTED:
            batch.add(client, extents)
            return batch, len(extents)
        self._append_batch(buffer, batch, now_ms)
        if isinstance(result, Ending):
            self._end_attempt(client, result)
        client.paused_until_ms = now_ms + _SPILL_RETRY_MS
        return StreamBatch(client.attempt, keeps_timestamps=client.keeps_timestamps), 0

    def _append_batch(self, buffer: memoryview, batch: StreamBatch, now_ms: int) -> None:
        """Append a batch to lanes, or write it to its attempt's spill file, and count it."""
        if not batch.extents:
            return
        if batch.is_spilling:
            self._spill(buffer, batch, now_ms)
            return
        first = self._row.counted  # the number of the batch's first message
        self._row.begin_batch()
        lanes = self._lanes if batch.attempt is None else batch.attempt.lanes
        lanes.wall_offset_ms = self._lanes.wall_offset_ms  # an attempt has its own lanes, which nothing else updates
        ingested = lanes.ingest(
            buffer, batch.extents, first, now_ms, sources=batch.sources, keeps_timestamps=batch.keeps_timestamps
        )
        self._count_appended(buffer, batch, lanes, ingested, now_ms)

    def count_intake_batch(
        self, buffer: memoryview, parts: Collection[ClientExtents], ingested: Ingested, now_ms: int
    ) -> None:
        """Count a batch that the intake has appended; `parts` has the extents of each client's messages."""
        (first_client, _), *_ = parts
        attempt = first_client.attempt  # the same for all clients: an attempt's batch has only the attempt's client
        batch = StreamBatch(attempt)
        for client, extents in parts:
            batch.add(client, extents)
        lanes = self._lanes if attempt is None else attempt.lanes
        self._count_appended(buffer, batch, lanes, ingested, now_ms)
        for client, _ in parts:
            if client.postponed:
                self._requeue_postponed(client)

    def _count_appended(
        self, buffer: memoryview, batch: StreamBatch, lanes: Lanes, ingested: Ingested, now_ms: int
    ) -> None:
        """Count a batch, and handle its messages without room and its replaced timestamps."""
        first = self._row.counted  # the number of the batch's first message
        if ingested.no_room:
            self._lanes.request_publish()  # their delivery frees room, even if the batch went to an attempt's lanes
            ending = self._count_partly_appended(buffer, batch, ingested, first, now_ms)
        else:
            ending = None
            self._count_batch(buffer, batch, ingested, self._record_received(batch, ingested), first)
        if replaced := lanes.drain_replaced():
            self._record_replaced(replaced, batch, first)
        if ending is not None:
            client, _ = batch.sender_of(0)  # an attempt's batch has one client
            self._end_attempt(client, ending)

    def _count_partly_appended(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, first: int, now_ms: int
    ) -> Ending | None:
        """Spill, postpone or discard a batch's messages without room, and count the batch.

        Return the reason for the end of the batch's attempt if its spill file cannot be written.
        """
        ingested, spilled, ending = self._spill_rest(buffer, batch, ingested, first, now_ms)
        postponed = remove_over_share(ingested) if self._blocks else []
        increments = self._record_received(batch, ingested)
        increments[lay.SPILL_IN] = len(spilled)
        # `SpillFeed` counts these messages as processed when it feeds the file back.
        increments.subtract(processed_counter(buffer[at : at + length]) for at, length in spilled)
        self._return_postponed(buffer, batch, postponed, increments, first)
        self._count_batch(buffer, batch, ingested, increments, first)
        return ending

    def _record_received(self, batch: StreamBatch, ingested: Ingested) -> Tally[int]:
        """Add a batch's messages to their flush groups; return the amount by which the batch raises each counter."""
        increments = increments_of_batch(len(batch.extents), ingested, map(batch.discard_reason, ingested.no_room))
        for client, flush_group, count in batch.counts_by_flush_group():
            flush_group.received += count
            increments[client.kind.forwarded] += count
        return increments

    def _count_batch(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, increments: Tally[int], first: int
    ) -> None:
        """Report the discarded messages of a batch, and count the batch."""
        if unappended_count(ingested):
            self._report_discarded(buffer, batch, ingested, increments, first)
        positive = +increments  # without zeros
        self._row.commit_counted(first + len(batch.extents), positive | self._reporter.copy_increments())
        self._reporter.queue_copies()

    def _spill_rest(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, first: int, now_ms: int
    ) -> tuple[Ingested, Extents, Ending | None]:
        """Spill an attempt's messages that found no room in the attempt's part of the slab.

        Return three values: `ingested` without the spilled messages; the extents of these messages; the reason for the
        attempt's end if the file cannot be written.
        """
        if batch.attempt is None:
            return ingested, [], None
        if any(each.reason is DiscardReason.TOPIC_OVER_SHARE for each in ingested.no_room):
            self._attempts.spill_if_possible(batch.attempt)  # an attempt over its own limit spills already
        if not batch.is_spilling:
            return ingested, [], None
        indexes = sorted(index_in_batch(each.arrival, first) for each in ingested.no_room)
        extents = [batch.extents[index] for index in indexes]
        arrived_ms = now_ms + self._lanes.wall_offset_ms
        ending = self._attempts.spill(batch.attempt, join_extents(buffer, extents), len(extents), arrived_ms)
        if ending is not None:
            return ingested, [], ending
        return ingested._replace(no_room=[]), extents, None

    def _spill(self, buffer: memoryview, batch: StreamBatch, now_ms: int) -> None:
        """Write a batch to its attempt's spill file, and count it; end the attempt if the file cannot be written."""
        assert batch.attempt is not None  # only attempts spill
        (client, flush_group), count = batch.sender_of(0), len(batch.extents)
        arrived_ms = now_ms + self._lanes.wall_offset_ms
        ending = self._attempts.spill(batch.attempt, join_extents(buffer, batch.extents), count, arrived_ms)
        flush_group.received += count
        increments: dict[int, int] = {Counter.MsgReceived: count}
        if ending is None:
            increments |= {client.kind.forwarded: count, lay.SPILL_IN: count}
        else:
            increments[discarded(DiscardReason.ABANDONED_ATTEMPT)] = count
            flush_group.discard(DiscardReason.ABANDONED_ATTEMPT, count)
        self._row.commit_counted(self._row.counted + count, increments)
        if ending is not None:
            self._end_attempt(client, ending)

    def _record_replaced(self, replaced: list[TopicReplacements], batch: StreamBatch, first: int) -> None:
        for found in replaced:
            self._row.add(Counter.InputAgentReplaceTimestamp, found.message_count)
            client, _ = batch.sender_of(index_in_batch(found.arrival, first))
            warn_about_clock(found, client.peer, unknown_sender="a TCP connection")

    def _return_postponed(
        self, buffer: memoryview, batch: StreamBatch, postponed: list[NoRoom], increments: Tally[int], first: int
    ) -> None:
        """Append messages to their clients' `postponed`, and undo their counts, as if they had not been received."""
        for message in sorted(postponed, key=lambda each: each.arrival):
            index = index_in_batch(message.arrival, first)
            client, flush_group = batch.sender_of(index)
            at, length = batch.extents[index]
            client.stuck_topic = client.stuck_topic or message.topic
            client.postponed += buffer[at : at + length]
            client.counted_in_quota += 1
            flush_group.received -= 1
            for counter in (Counter.MsgReceived, client.kind.forwarded, processed_counter(buffer[at : at + length])):
                increments[counter] -= 1

    def _report_discarded(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, increments: Tally[int], first: int
    ) -> None:
        """Report a batch's discarded messages, count them in their flush groups, and correct the forwarded counters."""
        for rejection in ingested.rejections:
            client, flush_group = batch.sender_of(rejection.slot)  # `slot` is the message's index in the batch
            report_rejected(self._reporter, rejection, buffer, batch.extents[rejection.slot], client.peer)
            flush_group.discard(DiscardReason(rejection.failure))
            increments[client.kind.forwarded] -= 1
        for dropped in ingested.no_room:
            index = index_in_batch(dropped.arrival, first)
            client, flush_group = batch.sender_of(index)
            reason = batch.discard_reason(dropped)
            report_no_room(self._reporter, dropped, buffer, batch.extents[index], reason)
            flush_group.discard(reason)
            increments[client.kind.forwarded] -= 1

    def _on_malformed(self, client: StreamClientState, stop: SplitStop) -> None:
        """Discard the data of a client that sent an impossible size or a misplaced frame, and end its attempt."""
        counter = client.kind.too_large if stop is SplitStop.TOO_LARGE else client.kind.invalid_size
        self._discard_unprocessed(client, DiscardReason.MALFORMED, counter)
        self._end_attempt(client, NOT_UNDERSTOOD)

    def on_disconnect(self, client: StreamClientState) -> None:
        """Discard the client's open attempt and its incomplete message."""
        self.abandon(client)
        if client.unprocessed:
            self._discard_unprocessed(client, DiscardReason.UNCLEAN_DISCONNECT, client.kind.unclean_disconnect)
        else:
            self._row.add(client.kind.clean_disconnect)

    def _discard_unprocessed(self, client: StreamClientState, reason: DiscardReason, counter: Counter) -> None:
        """Discard all bytes of `unprocessed`, and count them as one message."""
        sample = bytes(client.unprocessed[: self._reporter.sample_size])
        is_tcp = client.kind is TCP and reason is DiscardReason.UNCLEAN_DISCONNECT
        self._reporter.record(reason, sample=sample, is_tcp=is_tcp, peer=client.peer)
        client.unprocessed = bytearray()
        client.flush_group.received += 1
        client.flush_group.discard(reason)
        next_number = self._row.counted + 1  # each counted message uses an arrival number, also without a record
        increments = {Counter.MsgReceived: 1, discarded(reason): 1, counter: 1} | self._reporter.copy_increments()
        self._row.commit_counted(next_number, increments)
        self._reporter.queue_copies()
