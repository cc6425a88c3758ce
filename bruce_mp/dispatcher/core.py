"""The dispatcher's core, which does no I/O: it gets the router's parcels and a broker's responses, and returns batches.

The core accumulates records (`accumulator`), has a queue for each partition (`queues`), builds batches
(`record_batches`), and applies the error table (`protocol.kafka.error_actions`) to responses.

A new dispatcher sends HELLO and waits for the router's RESYNC.  The frame with RESYNC also has the records that the
router has assigned to the slot, but no dispatcher has claimed.  The new dispatcher then completes the work of its
predecessor, the dead dispatcher in the same slot.  It finds the predecessor's records by a sweep, claims the rest of
each batch that the predecessor claimed in part, and repeats RETURNED for records that the router has not claimed.  At
the end the new dispatcher sends SYNCED.  Until then the router ignores all other frames, because they may be the
predecessor's.  A new router sends RESYNC to all dispatchers.  A dispatcher ignores late frames of a dead router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.dispatcher.accumulator import Accumulator
from bruce_mp.dispatcher.produce_responses import ResponseHandler
from bruce_mp.dispatcher.queues import Queues, QueueState
from bruce_mp.dispatcher.record_batches import BatchBuilder
from bruce_mp.dispatcher.send_queue import SendQueue
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.pipeline.corruption import quarantine, without_damaged
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.producer_id import is_idempotent
from bruce_mp.slab.recovery import inspect_segment, rebuild_batches, sweep
from bruce_mp.slab.rows import Move
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching
    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.dispatcher.send_queue import RequestContent
    from bruce_mp.errors import SlabError
    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.protocol.kafka.kafka_types import PartitionAck
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Dispatcher"]

PAUSE_REPEAT_S: Final = 1.0
"""The interval at which PAUSED is repeated, because the router that received PAUSED may have died."""

_TopicPartition = tuple[int, int]  # topic number, partition


class Dispatcher:
    """The queues of one dispatcher and its reactions to events.  `now` is in seconds of a monotonic clock."""

    def __init__(
        self, slab: Slab, row: ProcessRow, config: Config, slot: int, reporter: DiscardReporter, *, incarnation: int
    ) -> None:
        self._slab = slab
        self._row = row
        self._slot = slot
        self._claim_words = state_word(RunState.ASSIGNED, slot), state_word(RunState.QUEUED, slot)
        """The state words of unbuilt records before and after their claim."""
        self._incarnation = incarnation
        self._router_incarnation = 0
        self._config = config
        self._topics = TopicTable(slab)
        self.topic_name = self._topics.name_of
        self._send_queue = SendQueue()
        # At this number, at least half of the queues belong to deleted topics.
        queue_limit = 2 * slab.geometry.partitions
        self._queues = Queues(queue_limit, self._topics.has)
        self._accumulator = Accumulator(slab, row, self._batching_lookup(config))
        max_bytes, idempotent = config.batching.message_max_bytes, is_idempotent(slab)
        self._builder = BatchBuilder(slab, row, PartitionTable(slab), slot, max_bytes=max_bytes, idempotent=idempotent)
        self._responses = ResponseHandler(
            slab, row, reporter, self._builder, topics=self._topics, retry_limit=config.delivery.retry_limit
        )
        # Attributes of `ResponseHandler` that the process reads.
        self.partition_errors, self.traffic = self._responses.partition_errors, self._responses.traffic
        self.uncompressed_partitions = self._responses.uncompressed_partitions
        self._outbox: list[Parcel] = []
        self._throttled_until = 0.0
        self._is_paused = False
        self._must_hand_back_all = False
        """True from the router's HAND_BACK of EVERYTHING to the dispatcher's answer HANDED_BACK."""
        self._hand_back_start_ms: int | None = None
        """The time of the router's first HAND_BACK that still waits for responses; None if none waits."""
        self._is_synced = False
        """True once the dispatcher has processed its first RESYNC."""

    def apply_config(self, config: Config) -> None:
        """Apply a reloaded config; all accumulated records become ready (see `accumulator`)."""
        self._config = config
        self._add_to_queues(self._accumulator.apply_config(self._batching_lookup(config)))
        self._builder.max_bytes = config.batching.message_max_bytes
        self._responses.retry_limit = config.delivery.retry_limit

    def _batching_lookup(self, config: Config) -> Callable[[int], TopicBatching]:
        return lambda topic: config.batching_for(self._topics.name_of(topic))

    # --- state for the process ---------------------------------------------------------------------------------------

    def drain_outbox(self) -> list[Parcel]:
        """Empty the outbox, and return a frame for the router; the first parcel names the slot and the incarnation.

        Return [] if the outbox is empty.
        """
        if not self._outbox:
            return []
        frame, self._outbox = [Parcel(ParcelKind.SENDER, self._slot, self._incarnation), *self._outbox], []
        return frame

    def topic_names(self, batches: Iterable[BuiltBatch]) -> list[bytes]:
        return self._topics.names_of([batch.topic for batch in batches])

    @property
    def wants_connection(self) -> bool:
        """True if the dispatcher has records to send and is not paused."""
        return not self._is_paused and self._send_queue.has_work

    @property
    def batch_due_ms(self) -> int | None:
        return self._accumulator.due_ms

    @property
    def waiting_queues(self) -> Iterable[tuple[bytes, int, PartitionQueue]]:
        """(topic name, partition, queue) of each partition with messages that are unsent or await a response."""
        queues = [
            queue
            for queue in self._queues.values()
            # No method is called for this test, because reports ask thousands of queues each second.
            if queue.ready or queue.in_flight or queue.resend or queue.failed
        ]
        return ((self.topic_name(queue.topic), queue.partition, queue) for queue in queues)

    @property
    def is_exactly_once(self) -> bool:
        """True if the broker detects repeated batches."""
        return self._builder.broker_deduplicates

    @property
    def retry_at(self) -> float | None:
        """The time of the next retry after a back-off or throttling, in seconds; see `SendQueue.next_send_at`."""
        return self._send_queue.next_send_at(self._throttled_until)

    def throttle_until(self, moment: float) -> None:
        """Send nothing before the time `moment`, because the broker throttles the dispatcher."""
        self._throttled_until = max(self._throttled_until, moment)

    # --- from the router ---------------------------------------------------------------------------------------------

    def on_parcels(self, parcels: Sequence[Parcel], now_ms: int) -> None:
        """Process one frame of the router; its first parcel, SENDER, has the router's incarnation."""
        router_incarnation, rest = parcels[0].partition, parcels[1:]
        if rest[0].kind is ParcelKind.RESYNC and router_incarnation >= self._router_incarnation:
            self._router_incarnation = router_incarnation
            self._resync(rest, now_ms)
        elif router_incarnation == self._router_incarnation:
            self._process_parcels(rest, now_ms)

    def _process_parcels(self, parcels: Iterable[Parcel], now_ms: int) -> None:
        for kind, topic, partition, segments in parcels:
            if kind is ParcelKind.QUEUE:
                self._accumulate(segments, now_ms)
            elif kind is ParcelKind.HAND_BACK:
                self._hand_back(topic, partition, now_ms)
            elif kind is ParcelKind.FLUSH:
                if self._topics.has(topic):  # the router may have removed a topic without held messages
                    self._flush_topic(topic)
            elif kind is ParcelKind.SENT:
                claimed = [inspect_segment(self._slab, segment) for segment in self._claim_built(segments)]
                self._adopt_assigned(rebuild_batches(claimed))
            else:
                if kind is ParcelKind.WAITED:  # the topic's accumulated records are older, so they must be sent first
                    self._flush_topic(topic)
                self._make_ready(topic, partition, kernels.claim(self._slab, segments, *self._claim_words))

    def _accumulate(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Claim records that are in no batch and have partitions, and accumulate them."""
        runs, errors = kernels.claim_runs(self._slab, segments, *self._claim_words)
        for error in errors:
            quarantine(self._row, error)
        self._add_to_queues(self._accumulator.add(runs, now_ms))

    def _flush_topic(self, topic: int) -> None:
        self._add_to_queues(self._accumulator.flush_topic(topic))

    def _add_to_queues(self, runs: Iterable[ClaimedRun]) -> None:
        """Add runs to the ready records of their partitions."""
        queues, send_queue = self._queues, self._send_queue
        for segment, topic, partition, _, _, _, _ in runs:
            queue = queues.get((topic, partition)) or queues.get_or_create(topic, partition)
            queue.ready.append(segment)
            if not queue.is_scheduled:  # this repeats `SendQueue.schedule`, to save a call for each run
                queue.is_scheduled = True
                send_queue.append(queue)

    def _make_ready(self, topic: int, partition: int, segments: list[Segment]) -> None:
        queue = self._queues.get_or_create(topic, partition)
        queue.ready += segments
        self._send_queue.schedule(queue)

    def _claim_built(self, segments: Iterable[Segment]) -> list[Segment]:
        """Claim segments of batches that another dispatcher built, and count their records as sent."""
        assigned, in_flight = state_word(RunState.ASSIGNED_SENT, self._slot), state_word(RunState.IN_FLIGHT, self._slot)
        return self._row.move(segments, Move(assigned, in_flight, lay.FLOW_SENT))

    def _adopt_assigned(self, batches: list[BuiltBatch]) -> None:
        """Queue batches that another dispatcher built and the router has assigned to this slot, for resending."""
        # This broker may write numbered batches twice; the other dispatcher has recorded only the unnumbered batches.
        if not self._builder.broker_deduplicates:
            self._mark_in_doubt([batch for batch in batches if batch.base_sequence >= 0])
        self._adopt(batches)

    def _adopt(self, batches: list[BuiltBatch]) -> None:
        """Queue batches for resending; those of another producer epoch come last and get new sequence numbers."""
        current = [batch for batch in batches if not self._builder.is_outdated(batch)]
        outdated = [batch for batch in batches if self._builder.is_outdated(batch)]
        for batch in current:
            self._builder.advance_sequence(batch)
        for batch in [*current, *(self._builder.renumber(batch) for batch in outdated)]:
            queue = self._queues.get_or_create(batch.topic, batch.partition)
            queue.resend.append(batch)
            queue.begin_doubt()  # requests of the earlier dispatcher may still arrive at the broker
            self._send_queue.schedule(queue)

    # --- RESYNC ------------------------------------------------------------------------------------------------------

    def send_hello(self) -> None:
        self._outbox.append(Parcel(ParcelKind.HELLO))

    def _resync(self, parcels: Sequence[Parcel], now_ms: int) -> None:
        """Process a frame with RESYNC, and answer SYNCED."""
        resync, *rest = parcels
        resync_number = resync.topic
        if not self._is_synced:
            self._recover([segment for parcel in rest if parcel.kind is ParcelKind.SENT for segment in parcel.segments])
            self._is_synced = True
        # A new router may have other batching rules, and the records that it sends must not overtake accumulated ones.
        self._flush_all()
        for queue in self._queues.values():
            queue.must_hand_back = False  # the router repeats HAND_BACK after SYNCED
        self._must_hand_back_all = False
        self._process_parcels(rest, now_ms)
        self._repeat_returned()
        self._outbox.append(Parcel(ParcelKind.SYNCED, resync_number, self._router_incarnation))
        self.repeat_pauses()

    def _recover(self, built_segments: Iterable[Segment]) -> None:
        """Queue the records that the predecessor had claimed; claim and queue the `built_segments`.

        The `built_segments` belong to built batches that are assigned to this slot.  The predecessor may have claimed
        other segments of these batches, so each batch is rebuilt from both.
        """
        found = sweep(self._slab, {RunState.IN_FLIGHT, RunState.QUEUED}, self._slot)
        in_flight = [part for part in found if part.state is RunState.IN_FLIGHT]
        self._mark_in_doubt(rebuild_batches(in_flight))
        claimed_now = [inspect_segment(self._slab, segment) for segment in self._claim_built(built_segments)]
        self._adopt(rebuild_batches([*in_flight, *claimed_now]))
        for part in found:
            if part.state is RunState.QUEUED:
                self._make_ready(part.topic, part.partition, [part.segment])

    def _repeat_returned(self) -> None:
        """Repeat RETURNED for all records that the router has not claimed: the earlier frames may be lost."""
        kinds = {RunState.RETURNED: ParcelKind.RETURNED, RunState.RETURNED_SENT: ParcelKind.RETURNED_SENT}
        found = sweep(self._slab, kinds, self._slot)
        self._outbox += [Parcel(kinds[part.state], part.topic, part.partition, [part.segment]) for part in found]
        # Also return the other records of these partitions: they are newer than the records in `found`, so they must
        # not be sent first.
        for topic, partition in dict.fromkeys((part.topic, part.partition) for part in found):
            self._return_queue(self._queues.get_or_create(topic, partition))

    # --- to the broker -----------------------------------------------------------------------------------------------

    def on_connected(self, *, broker_deduplicates: bool) -> None:
        """Begin to use a connection; `broker_deduplicates` is True if the broker detects repeated batches."""
        self._builder.idempotent = is_idempotent(self._slab)
        self._builder.broker_deduplicates = self._builder.idempotent and broker_deduplicates
        if self._builder.idempotent and not broker_deduplicates:
            # This broker cannot recognize batches that it got before, from a predecessor or from another leader.
            self._mark_in_doubt([batch for queue in self._queues.values() for batch in queue.resend])

    def _mark_in_doubt(self, batches: list[BuiltBatch]) -> None:
        for batch in batches:
            self._responses.mark_in_doubt([batch], self.topic_name(batch.topic))

    def flush_due(self, now_ms: int) -> None:
        """Make the records of due pending batches ready."""
        self._add_to_queues(self._accumulator.flush_due(now_ms))

    def drain(self) -> None:
        """Disable batching and flush all accumulated records."""
        self._accumulator.is_draining = True
        self._flush_all()

    def next_request(self, requests_in_flight: int, now: float) -> list[BuiltBatch]:
        """Return the batches of the next request, at most one for each partition; [] if nothing may be sent now."""
        is_limited = now < self._throttled_until or requests_in_flight >= self._config.delivery.max_in_flight
        if not self._send_queue or self._is_paused or is_limited:
            return []
        request_bytes = self._config.batching.produce_request_data_limit  # 0: each request has one message
        content = self._send_queue.choose(self._builder, request_bytes, now)
        for error in content.errors:
            quarantine(self._row, error)
        batches = self._without_damaged(content, self._builder.build(content.queues, content.contents))
        self._builder.put_in_flight(content.resent)
        self._builder.put_in_flight(zip(content.queues, batches, strict=True))
        return [*(batch for _, batch in content.resent), *batches]

    def _without_damaged(self, content: RequestContent, built: Sequence[BuiltBatch | None]) -> list[BuiltBatch]:
        """Return the new batches of a request; put back the content of those with a damaged segment, which are None."""
        batches = [batch for batch in built if batch is not None]
        if len(batches) < len(built):
            for queue, segments, batch in list(zip(content.queues, content.contents, built, strict=True)):
                if batch is None:
                    content.queues.remove(queue)
                    queue.ready.extendleft(reversed(without_damaged(self._slab, self._row, segments)))
                    self._send_queue.schedule(queue)
        return batches

    # --- responses ---------------------------------------------------------------------------------------------------

    def on_written(self, batches: Sequence[BuiltBatch], now: float) -> None:
        """Settle the batches of a request with acks = 0, because the socket has accepted all bytes of the request."""
        self._responses.settle(batches)
        for batch in batches:
            queue = self._queues[batch.topic, batch.partition]
            queue.in_flight.remove(batch)
            self._row.add(Counter.AckNotRequired, batch.records)
            self._continue_queue(queue, now)

    def on_acks(self, batches: Sequence[BuiltBatch], acks: Sequence[PartitionAck], now: float) -> bool:
        """Apply a response; return True if an ack has an error.

        `acks` has one ack for each batch, in order; it may be empty if none has an error.
        """
        failed = [(batch, ack) for batch, ack in zip(batches, acks, strict=True) if ack.error] if acks else []
        good = [batch for batch, ack in zip(batches, acks, strict=True) if not ack.error] if failed else batches
        self._responses.on_accepted(good)
        queues, flowing = self._queues, QueueState.FLOWING
        for batch in good:
            queue = queues[batch.topic, batch.partition]
            queue.on_accepted(batch)
            if queue.state is not flowing:
                self._continue_queue(queue, now)
        for batch, ack in failed:
            queue = queues[batch.topic, batch.partition]
            self._responses.apply_error(queue, batch, ack, self.topic_name(batch.topic))
            self._continue_queue(queue, now)
        self._finish_hand_back()  # `_continue_queue` also calls this, but was not called for FLOWING queues
        return bool(failed)

    def on_unreadable(self, batch: BuiltBatch, error: SlabError, now: float) -> None:
        """Requeue a batch of `next_request` that could not be encoded, and quarantine its damaged records."""
        quarantine(self._row, error)
        queue = self._queues.get_or_create(batch.topic, batch.partition)
        queue.in_flight.remove(batch)
        queue.resend[:0] = self._responses.without_damaged(queue, batch)
        self._continue_queue(queue, now)

    def _continue_queue(self, queue: PartitionQueue, now: float) -> None:
        """Schedule a queue after a response; end its draining if no response is outstanding."""
        if queue.state is QueueState.DRAINING and not queue.in_flight:
            self._end_draining(queue, now)
        self._send_queue.schedule(queue)
        self._finish_hand_back()

    def _end_draining(self, queue: PartitionQueue, now: float) -> None:
        """Leave DRAINING: renumber batches if needed, then hand back, pause, or send again."""
        queue.requeue_failed()
        self._responses.renumber(queue, self.topic_name(queue.topic))
        queue.state = QueueState.FLOWING
        if queue.must_hand_back:
            self._return_queue(queue)
            self._outbox.append(Parcel(ParcelKind.HANDED_BACK, queue.topic, queue.partition))
        elif queue.must_pause:
            queue.state = QueueState.PAUSED
            self._outbox.append(Parcel(ParcelKind.PAUSED, queue.topic, queue.partition))
        elif queue.must_back_off:
            queue.start_backoff(now)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def on_connection_lost(self, *, may_have_refused: bool = False) -> None:
        """Requeue the batches in flight, and report PAUSED, so that the router reroutes all records.

        A dispatcher without records does not pause, because the next message opens another connection, unless the
        broker may have refused messages with acks = 0, because another broker leads their partitions.
        """
        for queue in self._queues.values():
            unanswered = queue.fail_in_flight()
            if unanswered:
                self._responses.mark_in_doubt(unanswered, self.topic_name(queue.topic))
            if queue.state is QueueState.DRAINING:
                self._responses.renumber(queue, self.topic_name(queue.topic))
                queue.state = QueueState.FLOWING
            self._send_queue.schedule(queue)
        self._hand_back_start_ms = None  # no response is outstanding any longer
        if self._must_hand_back_all:
            self._finish_hand_back()
        elif may_have_refused or any(queue.has_work for queue in self._queues.values()):
            self._is_paused = True
            self._outbox.append(Parcel(ParcelKind.PAUSED, partition=EVERYTHING))

    def repeat_pauses(self) -> bool:
        """Repeat PAUSED for each paused partition and for a paused dispatcher; return False if nothing is paused."""
        paused = [queue for queue in self._queues.values() if queue.state is QueueState.PAUSED]
        self._outbox += [Parcel(ParcelKind.PAUSED, queue.topic, queue.partition) for queue in paused]
        if self._is_paused:
            self._outbox.append(Parcel(ParcelKind.PAUSED, partition=EVERYTHING))
        return self._is_paused or bool(paused)

    def update_hand_back_deadline(self) -> int | None:
        """Return the time, in ms, until which a hand-back may wait for responses; None if no hand-back waits."""
        if self._hand_back_start_ms is None:
            return None
        if not self._must_hand_back_all and not any(queue.must_hand_back for queue in self._queues.values()):
            self._hand_back_start_ms = None
            return None
        return self._hand_back_start_ms + self._config.delivery.dispatcher_restart_max_delay_ms

    def _hand_back(self, topic: int, partition: int, now_ms: int) -> None:
        self._flush_all()  # so that accumulated records are handed back with the others
        if self._hand_back_start_ms is None:
            self._hand_back_start_ms = now_ms
        if partition == EVERYTHING:
            self._must_hand_back_all = True
            self._is_paused = True
            self._finish_hand_back()
            return
        queue = self._queues.get_or_create(topic, partition)
        if queue.in_flight:
            queue.drain()
            queue.must_hand_back = True
        else:
            self._return_queue(queue)
            self._outbox.append(Parcel(ParcelKind.HANDED_BACK, topic, partition))

    def _flush_all(self) -> None:
        self._add_to_queues(self._accumulator.flush_all())

    def _finish_hand_back(self) -> None:
        """Hand back everything if the router has requested this and no response is outstanding."""
        if not self._must_hand_back_all or any(queue.in_flight for queue in self._queues.values()):
            return
        for queue in self._queues.values():
            self._return_queue(queue)
        self._send_queue.clear()
        self._must_hand_back_all = self._is_paused = False
        self._outbox.append(Parcel(ParcelKind.HANDED_BACK, partition=EVERYTHING))

    def _return_queue(self, queue: PartitionQueue) -> None:
        """Return a queue's records to the router, in order: built batches first."""
        if self._topics.has(queue.topic):  # the empty queue of a removed topic may still exist
            self._responses.partition_errors.release(self.topic_name(queue.topic), queue.partition)
            self._responses.skip_sequence_gap(queue)
        built, unbuilt = queue.pop_all()
        self._return_segments(queue, [part for batch in built for part in batch.segments], is_built=True)
        self._return_segments(queue, unbuilt, is_built=False)

    def _return_segments(self, queue: PartitionQueue, segments: list[Segment], *, is_built: bool) -> None:
        if segments:
            self._builder.return_to_router(segments, is_built=is_built)
            kind = ParcelKind.RETURNED_SENT if is_built else ParcelKind.RETURNED
            self._outbox.append(Parcel(kind, queue.topic, queue.partition, segments))
