"""Admission of stream data: the path of received bytes into lanes, without the sockets.

The bytes of many connections are in one buffer.  `StreamAdmission` splits them into messages, and parses, appends and
counts the messages of all connections as one batch.  The order of the steps makes a crash harmless at any point.  First
the lanes get the records, then one transaction counts them, then the worker publishes the runs.  A successor counts the
records that no transaction has counted.  Bytes that are in no lane are lost with their connection.

If clients wait for room (`when_full` is "block"), a message is appended only when it certainly finds room.  Until then
it stays in the client's `unprocessed`, and the worker does not read from the client.  The same happens to:

* messages beyond a user's quota, until the next interval;
* messages of a topic over its share of the slab: the lanes append the other messages of the batch, and return these;
* messages of a fenced attempt for which neither the slab nor a spill file (`slab/spill.py`) has room;
* messages that follow a completed attempt, until the attempt's spill file is fed back into the slab.
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
    from collections import Counter as Tally  # `Counter` is the enum of telemetry
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
"""Interval of retries for a client that waits for room in spill files, or until its last spill file is fed back."""


class StreamAdmission:
    """Admits the data of stream clients to the lanes.

    For each barrier, the admission calls `on_barrier(client, frame)` after it has appended all earlier messages.  For
    each completed attempt, it calls `on_completed(runs)`.
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
        senders_wait: bool,
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
        self.apply_limits(max_size, senders_wait=senders_wait)

    def apply_limits(self, max_size: int, *, senders_wait: bool) -> None:
        """Apply the largest size of a message; if `senders_wait` is True, clients wait for room."""
        self._max_size = max_size
        self._senders_wait = senders_wait
        self._lanes.caller_retries = senders_wait  # so lanes also refuse later messages of a refused topic

    def admit(self, buffer: memoryview, portions: Collection[Portion], now_ms: int) -> None:
        """Append the whole messages of each portion; the other bytes become the `unprocessed` of its client."""
        batch = StreamBatch()
        for portion in portions:
            batch = self._admit_portion(buffer, portion, batch, now_ms)
        self._append_batch(buffer, batch, now_ms)
        for client, _, _ in portions:
            if client.postponed:
                self._requeue_postponed(client)

    def _requeue_postponed(self, client: StreamClientState) -> None:
        """Put the postponed messages of a client before its `unprocessed`, and pause the client."""
        client.unprocessed[:0] = client.postponed
        client.postponed = bytearray()
        client.pause()
        self._row.add(Counter.StreamInputTopicOverShare)

    def is_plain(self, client: StreamClientState) -> bool:
        """Return True if `StreamIntake` may serve a client: its messages need no step except appending to lanes."""
        is_spilling = client.attempt is not None and client.attempt.is_spilling
        must_wait = client.is_paused or client.precounted_count or client.last_spill_file
        is_special = client.must_close or client.keeps_timestamps or client.full_size > MIN_READ
        return not (is_spilling or must_wait or is_special or self._quotas.is_active)

    def may_resume(self, client: StreamClientState, now_ms: int) -> bool:
        """Return True if a retry of a paused client may succeed: it has no stuck topic, or the topic may hold more."""
        if not self._senders_wait or not client.stuck_topic:
            return True
        return self._lanes.may_grow(client.stuck_topic, chunks_for(len(client.unprocessed)), now_ms)

    def _admit_portion(self, buffer: memoryview, portion: Portion, batch: StreamBatch, now_ms: int) -> StreamBatch:
        """Add a client's messages to a batch, handle its frames, and return the batch for further messages.

        Stop at incomplete or malformed data, or at the first message that must wait.
        """
        client, offset, end = portion
        client.is_paused, client.paused_until_ms, client.stuck_topic = False, 0, b""
        batch = self._batch_for(buffer, client, batch, now_ms)
        while not client.must_close:
            split = split_stream(buffer, offset, end, self._max_size)
            if self._pause_behind_spill(client, split, now_ms):
                break
            batch, added_count = self._add_allowed(buffer, batch, client, split.extents, now_ms)
            if added_count < len(split.extents):
                offset, _ = split.extents[added_count]
                client.pause(client.paused_until_ms)  # `_add_allowed` may have set a time
                break
            offset, client.full_size = split.at, split.size  # of the frame or incomplete message after the whole ones
            if split.stop not in {SplitStop.BARRIER, SplitStop.FENCE}:
                break
            self._append_batch(buffer, batch, now_ms)
            batch = StreamBatch()
            if not self._handle_frame(client, split.stop, bytes(buffer[offset : offset + split.size]), now_ms):
                break
            batch = StreamBatch(client.attempt, keeps_timestamps=client.keeps_timestamps)
            offset += split.size
        if client.must_close:
            return StreamBatch()  # all earlier messages are appended already
        client.unprocessed = bytearray(buffer[offset:end])
        if client.is_paused or split.stop is SplitStop.MORE:
            return batch
        self._append_batch(buffer, batch, now_ms)
        if not client.postponed:  # else the loop ended at a frame that waits for the postponed messages
            self._on_malformed(client, split.stop)
        return StreamBatch()

    def _add_allowed(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add messages until the quota or a lack of room forbids the next one; the quota also pauses the client.

        Return the batch for further messages, and the number of messages added.
        """
        allowed_count = self._count_allowed(client, len(extents), now_ms)
        batch, added_count = self._add_to_batch(buffer, batch, client, extents[:allowed_count], now_ms)
        self._count_in_quota(client, added_count, now_ms)
        if added_count == allowed_count < len(extents) and not client.must_close and not client.postponed:
            self._pause_for_quota(client, now_ms)
        return batch, added_count

    def _batch_for(self, buffer: memoryview, client: StreamClientState, batch: StreamBatch, now_ms: int) -> StreamBatch:
        """Return `batch` if it has the client's attempt and `keeps_timestamps`; else append it and return a new one."""
        if batch.attempt is client.attempt and batch.keeps_timestamps == client.keeps_timestamps:
            return batch
        self._append_batch(buffer, batch, now_ms)
        return StreamBatch(client.attempt, keeps_timestamps=client.keeps_timestamps)

    def _pause_behind_spill(self, client: StreamClientState, split: StreamSplit, now_ms: int) -> bool:
        """Pause a client if its last spill file is not fed back yet; return True if the client is paused."""
        if client.last_spill_file is not None and client.last_spill_file.is_closed:  # it is fed back
            client.last_spill_file = None
        has_messages_or_fence = split.extents or split.stop is SplitStop.FENCE  # a barrier need not wait
        if client.last_spill_file is None or not has_messages_or_fence:
            return False
        client.pause(now_ms + _SPILL_RETRY_MS)
        return True

    def _handle_frame(self, client: StreamClientState, stop: SplitStop, frame: bytes, now_ms: int) -> bool:
        """Handle a barrier, begin or end frame; return False if it is misplaced, or must wait for earlier messages."""
        if client.postponed:
            return False  # later messages must not overtake the postponed ones, which precede the frame
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
        """Complete an attempt, or end it if `FencedAttempts.complete` refuses it."""
        self._lanes.close_runs()  # the router must get the earlier messages of the connection first
        result = self._attempts.complete(client, attempt)
        if isinstance(result, Ending):
            self._end_attempt(client, result)
        else:
            client.attempt, client.last_spill_file = None, attempt.spill
            self._on_completed(result)

    def abandon(self, client: StreamClientState, ending: Ending | None = None) -> None:
        """Discard the client's open attempt, if it has one; `ending` is None if the client need not be told why.

        With an `ending`, no more of the client's data is admitted: the rest of the attempt would be ordinary messages.
        """
        attempt, client.attempt = client.attempt, None
        if attempt is None:
            return
        if ending is not None:
            client.must_close = True
            text = f"The daemon ended the fenced attempt {attempt}: {ending.explanation}. Nothing of it is delivered."
            client.final_frame = encode_ended(ending.reason, text)
            log.error("%s", text, extra={"about": ("attempt ended", ending.reason)})  # "about": see telemetry/logs.py
        self._attempts.abandon(attempt)

    def _end_attempt(self, client: StreamClientState, ending: Ending) -> None:
        """End a client's open attempt, and stop reading the client."""
        client.must_close = True
        self.abandon(client, ending)

    def _count_allowed(self, client: StreamClientState, count: int, now_ms: int) -> int:
        """Return how many of a client's next `count` messages its user's quota allows in this interval.

        Messages that the quota counts already are always allowed.
        """
        remaining = self._quotas.remaining(client.user, now_ms) if count else None
        return count if remaining is None else min(remaining + client.precounted_count, count)

    def _count_in_quota(self, client: StreamClientState, added_count: int, now_ms: int) -> None:
        """Count added messages in the user's quota, except for the `precounted_count` ones."""
        counted_before = min(added_count, client.precounted_count)
        client.precounted_count -= counted_before
        if added_count > counted_before and self._quotas.is_active:
            self._quotas.record_received(client.user, added_count - counted_before, now_ms)

    def _pause_for_quota(self, client: StreamClientState, now_ms: int) -> None:
        client.paused_until_ms = self._quotas.next_interval_start_ms(now_ms)
        self._quotas.warn_over_quota(client.user, "connections are not read before the next interval")
        self._quotas.add_sums(client.user, SenderSums(waited=1), now_ms)
        self._row.add(Counter.StreamInputOverQuota)

    def _add_to_batch(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add messages while they find room; return the batch for further messages, and the number of added ones."""
        if batch.is_spilling:
            return self._add_to_spill(buffer, batch, client, extents, now_ms)
        if not self._senders_wait:
            batch.add(client, extents)
            return batch, len(extents)
        added_count = 0
        while added_count < len(extents):
            more = extents[added_count:] if added_count else extents
            largest_size = max(map(length_of, more))
            fitting_count = batch.count_fitting(self._pool, more, largest_size)
            if not fitting_count and batch.extents:  # the estimate is cautious: append the batch, and estimate again
                self._append_batch(buffer, batch, now_ms)
                batch = StreamBatch(batch.attempt, keeps_timestamps=batch.keeps_timestamps)
                if client.must_close or client.postponed:
                    return batch, added_count
                continue
            if not fitting_count:
                break
            batch.add(client, more if fitting_count >= len(more) else more[:fitting_count], largest_size)
            added_count += fitting_count
        return batch, added_count

    def _add_to_spill(
        self, buffer: memoryview, batch: StreamBatch, client: StreamClientState, extents: Extents, now_ms: int
    ) -> tuple[StreamBatch, int]:
        """Add all messages to a batch for a spill file; without room for all, pause the client or end its attempt."""
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
        first_number = self._row.counted  # the number of the batch's first message
        self._row.begin_batch()
        lanes = self._lanes if batch.attempt is None else batch.attempt.lanes
        lanes.wall_offset_ms = self._lanes.wall_offset_ms  # nothing else updates an attempt's lanes
        ingested = lanes.ingest(
            buffer, batch.extents, first_number, now_ms, sources=batch.sources, keeps_timestamps=batch.keeps_timestamps
        )
        self._count_appended(buffer, batch, lanes, ingested, now_ms)

    def count_intake_batch(
        self, buffer: memoryview, parts: Collection[ClientExtents], ingested: Ingested, now_ms: int
    ) -> None:
        """Count a batch that the intake has appended; `parts` has the extents of the messages of each client."""
        (first_client, _), *_ = parts
        attempt = first_client.attempt  # of all messages: a batch of an attempt has only one client
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
        first_number = self._row.counted  # the number of the batch's first message
        if ingested.no_room:
            self._lanes.request_publish()  # soon: the delivery of these runs frees room
            ending = self._count_partly_appended(buffer, batch, ingested, first_number, now_ms)
        else:
            ending = None
            self._count_batch(buffer, batch, ingested, self._record_received(batch, ingested), first_number)
        if replaced := lanes.drain_replaced():
            self._record_replaced_timestamps(replaced, batch, first_number)
        if ending is not None:
            client, _ = batch.sender_of(0)  # an attempt's batch has one client
            self._end_attempt(client, ending)

    def _count_partly_appended(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, first_number: int, now_ms: int
    ) -> Ending | None:
        """Spill, postpone or discard a batch's messages without room, and count the batch.

        Return the reason for the end of the batch's attempt if its spill file cannot be written.
        """
        ingested, spilled, ending = self._spill_rest(buffer, batch, ingested, first_number, now_ms)
        postponed = remove_over_share(ingested) if self._senders_wait else []
        increments = self._record_received(batch, ingested)
        increments[lay.SPILL_IN] = len(spilled)
        # `SpillFeed` counts the spilled messages as processed when it feeds the file back.
        increments.subtract(processed_counter(buffer[offset:]) for offset, _ in spilled)
        self._return_postponed(buffer, batch, postponed, increments, first_number)
        self._count_batch(buffer, batch, ingested, increments, first_number)
        return ending

    def _record_received(self, batch: StreamBatch, ingested: Ingested) -> Tally[int]:
        """Add a batch's messages to their flush groups; return the amount by which the batch raises each counter."""
        increments = increments_of_batch(len(batch.extents), ingested, map(batch.discard_reason, ingested.no_room))
        for client, flush_group, count in batch.counts_by_flush_group():
            flush_group.received += count
            increments[client.kind.forwarded] += count
        return increments

    def _count_batch(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, increments: Tally[int], first_number: int
    ) -> None:
        """Report the discarded messages of a batch, and count the batch."""
        if unappended_count(ingested):
            self._report_discarded(buffer, batch, ingested, increments, first_number)
        positive = +increments  # without zeros
        self._row.commit_counted(first_number + len(batch.extents), positive | self._reporter.copy_increments())
        self._reporter.queue_copies()

    def _spill_rest(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, first_number: int, now_ms: int
    ) -> tuple[Ingested, Extents, Ending | None]:
        """Spill the messages of an attempt that found no room in the slab.

        Return `ingested` without the spilled messages; the extents of the spilled messages; and the reason for the
        attempt's end if the file cannot be written, else None.
        """
        if batch.attempt is None:
            return ingested, [], None
        if any(each.reason is DiscardReason.TOPIC_OVER_SHARE for each in ingested.no_room):
            self._attempts.spill_if_possible(batch.attempt)  # over its own limit, it spills already
        if not batch.is_spilling:
            return ingested, [], None
        indexes = sorted(index_in_batch(each.arrival, first_number) for each in ingested.no_room)
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

    def _record_replaced_timestamps(
        self, replaced: list[TopicReplacements], batch: StreamBatch, first_number: int
    ) -> None:
        for found in replaced:
            self._row.add(Counter.InputAgentReplaceTimestamp, found.message_count)
            client, _ = batch.sender_of(index_in_batch(found.arrival, first_number))
            warn_about_clock(found, client.peer, unknown_sender="a TCP connection")

    def _return_postponed(
        self, buffer: memoryview, batch: StreamBatch, postponed: list[NoRoom], increments: Tally[int], first_number: int
    ) -> None:
        """Append messages to the `postponed` of their clients, and undo their counts: they count as not received."""
        for message in sorted(postponed, key=lambda each: each.arrival):
            index = index_in_batch(message.arrival, first_number)
            client, flush_group = batch.sender_of(index)
            offset, length = batch.extents[index]
            client.stuck_topic = client.stuck_topic or message.topic
            client.postponed += buffer[offset : offset + length]
            client.precounted_count += 1
            flush_group.received -= 1
            for counter in (Counter.MsgReceived, client.kind.forwarded, processed_counter(buffer[offset:])):
                increments[counter] -= 1

    def _report_discarded(
        self, buffer: memoryview, batch: StreamBatch, ingested: Ingested, increments: Tally[int], first_number: int
    ) -> None:
        """Report the discarded messages of a batch, count them in their flush groups, and not as forwarded."""
        for rejection in ingested.rejections:
            client, flush_group = batch.sender_of(rejection.slot)  # `slot` is the message's index in the batch
            report_rejected(self._reporter, rejection, buffer, batch.extents[rejection.slot], client.peer)
            flush_group.discard(DiscardReason(rejection.failure))
            increments[client.kind.forwarded] -= 1
        for dropped in ingested.no_room:
            index = index_in_batch(dropped.arrival, first_number)
            client, flush_group = batch.sender_of(index)
            reason = batch.discard_reason(dropped)
            report_no_room(self._reporter, dropped, buffer, batch.extents[index], reason)
            flush_group.discard(reason)
            increments[client.kind.forwarded] -= 1

    def _on_malformed(self, client: StreamClientState, stop: SplitStop) -> None:
        """Discard the unprocessed data of a client after an invalid size or a misplaced frame, and end its attempt."""
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
        next_number = self._row.counted + 1  # a counted message uses up an arrival number, even if it has no record
        increments = {Counter.MsgReceived: 1, discarded(reason): 1, counter: 1} | self._reporter.copy_increments()
        self._row.commit_counted(next_number, increments)
        self._reporter.queue_copies()
