"""What came on stream connections, on its way into lanes; everything about it but the sockets.

Bytes of many connections lie in one buffer.  They are cut into messages, which then are parsed, appended and counted
together: what is paid once a batch is shared by all.  In the order of the steps it is safe to die anywhere, as for
datagrams: first the records are in lanes, then one transaction counts them, then the router hears of the runs.  A
successor counts what is in lanes and was not counted; bytes that were in no lane are gone, with their connection.

Where senders wait for room (`when_full = "block"`) a message is only taken once it finds room for certain.  What does
not stays the client's `rest`, in order, and nothing is read from that client until it is taken.  The same happens to
what is beyond a user's quota, until the next interval, and to messages of a topic that holds its share of the slab:
only the lanes know of that, so these messages come back from a batch of which the others are taken.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason
from bruce_mp.input.clients import TCP
from bruce_mp.input.pressure import chunks_for, messages_that_fit
from bruce_mp.input.tallies import recognised, refused, report, report_no_room, tally_ingested
from bruce_mp.input.timestamps import warn_of_clock
from bruce_mp.kernels import Stop, cut
from bruce_mp.protocol.fence_wire import decode_begin, is_end
from bruce_mp.slab import layout as lay
from bruce_mp.slab.senders import SenderSums
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections import Counter as Tally
    from collections.abc import Callable, Collection, Iterable

    from bruce_mp.input.clients import Client, Section
    from bruce_mp.input.fences import Attempt, Attempts
    from bruce_mp.input.senders import Senders
    from bruce_mp.kernels import Ingested, Lanes, NoRoom
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["Portion", "StreamAdmission"]

_length: Final = itemgetter(1)


class Portion(NamedTuple):
    """What a client sent: the bytes of the buffer from `begin` to `end`."""

    client: Client
    begin: int
    end: int


class _Batch:
    """Messages that are taken in together, with the client and section of each stretch of them.

    Those of an `attempt` have no others among them.  With `is_explicit` all of them keep their timestamps.
    """

    def __init__(self, attempt: Attempt | None = None, *, is_explicit: bool = False) -> None:
        self.attempt = attempt
        self.is_explicit = is_explicit
        self.places: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.largest = 0
        self._starts: list[int] = []
        self._senders: list[tuple[Client, Section]] = []

    def add(self, client: Client, places: list[tuple[int, int]]) -> None:
        if places:
            self._starts.append(len(self.places))
            self._senders.append((client, client.section))
            self.places += places
            self.sources += [client.section.number] * len(places)
            self.largest = max(self.largest, *map(_length, places))

    def sender(self, index: int) -> tuple[Client, Section]:
        return self._senders[bisect_right(self._starts, index) - 1]

    def why_no_room(self, dropped: NoRoom) -> DiscardReason:
        """Why a message found no room."""
        is_over = self.attempt is not None and self.attempt.is_over
        return DiscardReason.ABANDONED_ATTEMPT if is_over else dropped.reason

    def stretches(self) -> Iterable[tuple[Client, Section, int]]:
        """Each client and section with how many messages it has."""
        ends = [*self._starts[1:], len(self.places)]
        for (client, section), start, end in zip(self._senders, self._starts, ends, strict=True):
            yield client, section, end - start


class StreamAdmission:
    """Takes in what clients sent.

    `longest` is the size that a message may have at the most, `on_barrier(client, data)` is called for each barrier
    when everything before it is taken.  `release(runs)` is told of the runs of an attempt that is complete.
    Without `senders` there are no quotas.
    """

    def __init__(
        self,
        row: Row,
        lanes: Lanes,
        pool: ChunkPool,
        reporter: DiscardReporter,
        on_barrier: Callable[[Client, bytes], None],
        *,
        attempts: Attempts,
        release: Callable[[list[Segment]], None],
        longest: int,
        blocks: bool,
        senders: Senders | None = None,
    ) -> None:
        self._row = row
        self._lanes = lanes
        self._pool = pool
        self._reporter = reporter
        self._on_barrier = on_barrier
        self._attempts = attempts
        self._release = release
        self._senders = senders
        self.limit(longest, blocks=blocks)

    def limit(self, longest: int, *, blocks: bool) -> None:
        """From now on messages may be so long, and clients do or do not wait for room: see the arguments."""
        self._longest = longest
        self._blocks = self._lanes.keeps_order = blocks

    def admit(self, buffer: memoryview, portions: Collection[Portion], now_ms: int) -> None:
        """Take in what there is of whole messages; what is left of each portion becomes its client's rest."""
        batch = _Batch()
        for portion in portions:
            batch = self._admit_portion(buffer, portion, batch, now_ms)
        self._take(buffer, batch, now_ms)
        for client, _, _ in portions:
            if client.postponed:
                self._put_before_rest(client)

    def _put_before_rest(self, client: Client) -> None:
        """Have a client wait until the topic of the first message that was postponed holds less."""
        client.rest[:0] = client.postponed
        client.postponed = bytearray()
        client.is_blocked, client.wanted, client.held_until_ms = True, 0, 0
        self._row.add(Counter.StreamInputTopicOverShare)

    def may_go_on(self, client: Client, now_ms: int) -> bool:
        """Report if a client that waits is worth a look: the topic that it waits for may hold more by now."""
        return not client.stuck_topic or self._lanes.may_grow(client.stuck_topic, chunks_for(len(client.rest)), now_ms)

    def _admit_portion(self, buffer: memoryview, portion: Portion, batch: _Batch, now_ms: int) -> _Batch:
        client, at, end = portion
        client.is_blocked, client.held_until_ms, client.stuck_topic = False, 0, b""
        batch = self._batch_for(buffer, client, batch, now_ms)
        while not client.is_refused:
            found = cut(buffer, at, end, self._longest)
            within = self._within_quota(client, len(found.places), now_ms)
            batch, taken = self._add(buffer, batch, client, found.places[:within], now_ms)
            self._note_taken(client, taken, now_ms)
            if taken < len(found.places):
                if taken == within and not client.is_refused and not client.postponed:
                    self._hold(client, now_ms)
                at, client.wanted, client.is_blocked = found.places[taken][0], 0, True
                break
            at, client.wanted = found.at, found.size
            if found.stop not in {Stop.BARRIER, Stop.FENCE}:
                break
            self._take(buffer, batch, now_ms)
            batch = _Batch()
            if client.postponed:
                break  # what stands behind the frame must not pass what stands before it
            if not self._obey(client, found.stop, bytes(buffer[at : at + found.size])):
                break
            batch = _Batch(client.attempt, is_explicit=client.keeps_timestamps)
            at += found.size
        if client.is_refused:
            return _Batch()
        client.rest = bytearray(buffer[at:end])
        if not client.is_blocked and found.stop is not Stop.MORE:
            self._take(buffer, batch, now_ms)
            batch = _Batch()
            if not client.postponed:
                self._refuse(client, found.stop)
        return batch

    def _batch_for(self, buffer: memoryview, client: Client, batch: _Batch, now_ms: int) -> _Batch:
        """The batch for what a client sends: the messages of an attempt go with no others."""
        if batch.attempt is client.attempt and batch.is_explicit == client.keeps_timestamps:
            return batch
        self._take(buffer, batch, now_ms)
        return _Batch(client.attempt, is_explicit=client.keeps_timestamps)

    def _obey(self, client: Client, stop: Stop, frame: bytes) -> bool:
        """Do what a frame says that is no message; False if it is not to be there.  All before it is taken."""
        if client.is_refused:
            return True
        if stop is Stop.BARRIER:
            self._on_barrier(client, frame)
            return True
        begin, attempt = decode_begin(frame), client.attempt
        if attempt is None and begin is not None:
            client.attempt = self._attempts.begin(begin.name, self._lanes.windows)
            client.keeps_timestamps = begin.keeps_timestamps
            return True
        if attempt is not None and is_end(frame):
            client.attempt = None
            self._lanes.close_runs()  # what came before the attempt is delivered before it
            self._release(self._attempts.release(attempt))
            return True
        return False

    def abandon(self, client: Client) -> None:
        """The client is gone, or does not keep to the rules: what it has not completed is discarded."""
        attempt, client.attempt = client.attempt, None
        if attempt is not None:
            self._attempts.abandon(attempt)

    def _within_quota(self, client: Client, count: int, now_ms: int) -> int:
        """How many of so many messages a client may send in this interval."""
        left = None if self._senders is None or not count else self._senders.left(client.user, now_ms)
        return count if left is None else min(left + client.counted, count)

    def _note_taken(self, client: Client, taken: int, now_ms: int) -> None:
        """Count messages in the user's quota that do not count there yet."""
        before = min(taken, client.counted)
        client.counted -= before
        if taken > before and self._senders is not None and self._senders.matter:
            self._senders.took(client.user, taken - before, now_ms)

    def _hold(self, client: Client, now_ms: int) -> None:
        """The quota is used up: the client has to wait for the next interval."""
        assert self._senders is not None  # nobody else has a quota
        client.held_until_ms = self._senders.next_interval_ms(now_ms)
        self._senders.hold(client.user, "connections are not read before the next interval")
        self._senders.add(client.user, SenderSums(waited=1), now_ms)
        self._row.add(Counter.StreamInputOverQuota)

    def _add(
        self, buffer: memoryview, batch: _Batch, client: Client, places: list[tuple[int, int]], now_ms: int
    ) -> tuple[_Batch, int]:
        """Add messages as far as they find room; the batch to go on with, and how many were added."""
        if not self._blocks:
            batch.add(client, places)
            return batch, len(places)
        added = 0
        while added < len(places):
            room = self._room(batch, places[added:])
            if not room and batch.places:  # the batch may need less than it could
                self._take(buffer, batch, now_ms)
                batch = _Batch(batch.attempt, is_explicit=batch.is_explicit)
                if client.is_refused or client.postponed:
                    return batch, added
                continue
            if not room:
                break
            batch.add(client, places[added : added + room])
            added += room
        return batch, added

    def _room(self, batch: _Batch, more: list[tuple[int, int]]) -> int:
        """How many of `more` find room behind a batch that is not taken yet."""
        largest = max(map(_length, more))
        if chunks_for(largest) > self._pool.capacity:
            return self._room_before_hopeless(batch, more)
        _, first = (batch.places or more)[0]
        count, largest = len(batch.places) + len(more), max(largest, batch.largest)
        return max(0, messages_that_fit(self._pool, count, largest, first) - len(batch.places))

    def _room_before_hopeless(self, batch: _Batch, more: list[tuple[int, int]]) -> int:
        """One message is larger than all that this input can have: it would wait for ever, so it is let through."""
        at = next(index for index, (_, size) in enumerate(more) if chunks_for(size) > self._pool.capacity)
        return self._room(batch, more[:at]) if at else 1

    def _take(self, buffer: memoryview, batch: _Batch, now_ms: int) -> None:
        """Append a batch to lanes, and count it."""
        if not batch.places:
            return
        first = self._row.counted
        self._row.open_books()
        lanes = self._lanes if batch.attempt is None else batch.attempt.lanes
        lanes.clock_step_ms = self._lanes.clock_step_ms
        ingested = lanes.ingest(
            buffer, batch.places, first, now_ms, sources=batch.sources, is_explicit=batch.is_explicit
        )
        postponed = self._split_off_postponed(ingested)
        raises = tally_ingested(len(batch.places), ingested, map(batch.why_no_room, ingested.no_room))
        for client, section, count in batch.stretches():
            section.received += count
            raises[client.kind.forwarded] += count
        self._postpone(buffer, batch, postponed, raises, first)
        self._note_refused(buffer, batch, ingested, raises, first)
        self._row.count(first + len(batch.places), +raises)
        self._note_replaced(lanes, batch, first)
        if batch.attempt is not None and batch.attempt.is_over:
            client, _ = batch.sender(0)
            client.is_refused = True
            self.abandon(client)

    def _note_replaced(self, lanes: Lanes, batch: _Batch, first: int) -> None:
        """Count the timestamps that were replaced, and warn of their senders."""
        for found in lanes.drain_replaced():
            self._row.add(Counter.InputAgentReplaceTimestamp, found.messages)
            client, _ = batch.sender(lay.stream_number(found.arrival) - first)
            warn_of_clock(found, client.peer, is_tcp=client.kind is TCP)

    def _split_off_postponed(self, ingested: Ingested) -> list[NoRoom]:
        """Take those messages out of what found no room that only have to wait."""
        if not self._blocks or not ingested.no_room:
            return []
        over_share = DiscardReason.TOPIC_OVER_SHARE
        postponed = [dropped for dropped in ingested.no_room if dropped.reason is over_share]
        ingested.no_room[:] = [dropped for dropped in ingested.no_room if dropped.reason is not over_share]
        return postponed

    def _postpone(
        self, buffer: memoryview, batch: _Batch, postponed: list[NoRoom], raises: Tally[int], first: int
    ) -> None:
        """Give messages back to their clients, as if they had not been received yet."""
        for dropped in sorted(postponed, key=lambda each: each.arrival):
            index = lay.stream_number(dropped.arrival) - first
            client, section = batch.sender(index)
            at, length = batch.places[index]
            client.stuck_topic = client.stuck_topic or dropped.topic
            client.postponed += buffer[at : at + length]
            client.counted += 1
            section.received -= 1
            for counter in (Counter.MsgReceived, client.kind.forwarded, recognised(buffer[at : at + length])):
                raises[counter] -= 1

    def _note_refused(
        self, buffer: memoryview, batch: _Batch, ingested: Ingested, raises: Tally[int], first: int
    ) -> None:
        if not refused(ingested):
            return
        for rejection in ingested.rejections:
            client, section = batch.sender(rejection.slot)
            report(self._reporter, rejection, buffer, batch.places[rejection.slot], client.peer)
            section.discard(DiscardReason(rejection.failure))
            raises[client.kind.forwarded] -= 1
        for dropped in ingested.no_room:
            index = lay.stream_number(dropped.arrival) - first
            client, section = batch.sender(index)
            reason = batch.why_no_room(dropped)
            report_no_room(self._reporter, dropped, buffer, batch.places[index], reason)
            section.discard(reason)
            raises[client.kind.forwarded] -= 1

    def _refuse(self, client: Client, stop: Stop) -> None:
        """Nobody knows where the client's next message begins, or what it means."""
        counter = client.kind.too_large if stop is Stop.TOO_LARGE else client.kind.invalid_size
        self._discard_rest(client, DiscardReason.MALFORMED, counter)
        self.abandon(client)
        client.is_refused = True

    def hang_up(self, client: Client) -> None:
        """The client closed its connection."""
        self.abandon(client)
        if client.rest:
            self._discard_rest(client, DiscardReason.UNCLEAN_DISCONNECT, client.kind.unclean)
        else:
            self._row.add(client.kind.clean)

    def _discard_rest(self, client: Client, reason: DiscardReason, counter: Counter) -> None:
        sample = bytes(client.rest[: self._reporter.sample_size])
        is_tcp = client.kind is TCP and reason is DiscardReason.UNCLEAN_DISCONNECT
        self._reporter.note(reason, sample=sample, is_tcp=is_tcp, peer=client.peer)
        client.rest = bytearray()
        client.section.received += 1
        client.section.discard(reason)
        number = self._row.counted + 1  # it had a number, as everything that is counted
        self._row.count(number, {Counter.MsgReceived: 1, discarded(reason): 1, counter: 1})
