"""The router without an operating system: runs in, parcels for dispatchers out.

Everything that it holds is ROUTED in the slab, so a new router finds it by a sweep.  Every message is bound to a
partition before it leaves for a dispatcher and stays with it whatever happens: this keeps the order within a partition
through every reroute.  (The reference lets the dispatcher choose; then rerouted messages pass each other.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import DiscardReason
from bruce_mp.pipes.frames import EVERYTHING, Kind, Parcel
from bruce_mp.router.backoff import PauseBackoff
from bruce_mp.router.cluster import Address
from bruce_mp.router.discards import Discards
from bruce_mp.router.routes import Route, Scope, ScopeEvent, ScopeState
from bruce_mp.router.slots import SlotTable
from bruce_mp.router.topics import Topic
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State, word
from bruce_mp.slab.recovery import sweep, sweep_filled
from bruce_mp.slab.runs import name_of, place, read_run
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from bruce_mp.config.model import Config
    from bruce_mp.router.cluster import ClusterView, TopicView
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import Found
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Run, Segment
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["Router"]

OVERHEAD: Final = 26
"""What a message counts beyond key and value where sizes are limited: the overhead of message format 0."""
UNKNOWN_TOPIC_MS: Final = 5_000
"""How long a topic that the cluster does not know is not asked for again."""

NOWHERE: Final = Address("", 0)
"""The address of a broker that is in no metadata: its dispatcher fails to connect and hands back what it holds."""

_DISPATCHERS: Final = (State.ASSIGNED, State.ASSIGNED_SENT, State.QUEUED, State.IN_FLIGHT)
_ROUTED: Final = (State.ROUTED, State.ROUTED_SENT)


class Router:
    """See the module's text.  Times are in ms on one steady clock."""

    def __init__(
        self, slab: Slab, row: Row, config: Config, *, incarnation: int, reporter: DiscardReporter, rng: random.Random
    ) -> None:
        self._slab = slab
        self._row = row
        self._config = config
        self._rng = rng
        self._mine = word(State.ROUTED, incarnation)
        self._mine_sent = word(State.ROUTED_SENT, incarnation)
        self._discards = Discards(slab, row, reporter)
        self._table = TopicTable(slab)
        self._sequences = PartitionTable(slab)
        self._slots = SlotTable(slab)
        self._addresses: dict[int, Address] = {}
        self._scopes: dict[int, Scope] = {}
        self._view: ClusterView | None = None
        self._topics: dict[int, Topic] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        self._unknown: dict[bytes, list[Segment]] = {}
        self._refused: dict[bytes, int] = {}
        self._early: list[Segment] = []
        self._outbox: dict[int, list[Parcel]] = {}
        self._metadata_wanted_ms: int | None = 0
        self._draining = False

    # --- what the process asks ---------------------------------------------------------------------------------------

    def drain_outbox(self) -> dict[int, list[Parcel]]:
        """Parcels for dispatchers, by slot."""
        outbox, self._outbox = self._outbox, {}
        return outbox

    @property
    def metadata_wanted_ms(self) -> int | None:
        """When metadata should be fetched, None = nobody waits for it."""
        return self._metadata_wanted_ms

    def want_metadata(self, at_ms: int) -> None:
        """Fetch metadata at this time at the latest."""
        if self._metadata_wanted_ms is None or at_ms < self._metadata_wanted_ms:
            self._metadata_wanted_ms = at_ms

    def put_off_metadata(self, until_ms: int) -> None:
        """No broker answered: do not ask before this time."""
        self._metadata_wanted_ms = until_ms

    @property
    def due_ms(self) -> int | None:
        """When a batch is due next."""
        dues = [topic.batch.due_ms for topic in self._topics.values() if topic.batch is not None]
        return min((due for due in dues if due is not None), default=None)

    def wanted_dispatchers(self) -> dict[int, tuple[int, Address]]:
        """Slot to (broker, address): one for each broker in service, and for those that still hold something."""
        if self._view is None:
            return {}
        used = {route.slot for route in self._routes.values()}
        in_service = self._view.in_service
        return {
            slot: (node, self._addresses.get(node, NOWHERE))
            for node, slot in self._slots.pairs()
            if node in in_service or slot in used
        }

    # --- messages coming in ------------------------------------------------------------------------------------------

    def on_runs(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Runs that an input says are filled."""
        self._accept(kernels.take(self._slab, segments, State.FILLED, self._mine), now_ms)

    def _accept(self, segments: Iterable[Segment], now_ms: int) -> None:
        if self._view is None:
            self._early += segments
            return
        for segment in segments:
            self._route(segment, now_ms)

    def _route(self, segment: Segment, now_ms: int) -> None:
        run = read_run(self._slab, segment.chunk, segment.run)
        topic = self._topic_of(segment, run)
        if topic is None:
            self._park_unknown(segment, run, now_ms)
        elif run.largest + OVERHEAD > self._config.batching.message_max_bytes:
            for part in self._without_long(topic, segment):
                self._route_to(topic, part, run, now_ms)
        else:
            self._route_to(topic, segment, run, now_ms)

    def _topic_of(self, segment: Segment, run: Run) -> Topic | None:
        """The topic of a run, numbered if it was not; None when the cluster does not know it."""
        assert self._view is not None
        name = self._table.name_of(run.topic) if run.topic else name_of(self._slab, segment.chunk, segment.run, run)
        view = self._view.topics.get(name)
        if view is None:
            return None
        number = self._table.add(name, len(view.partitions))
        if number and not run.topic:
            self._slab.words[(self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_TOPIC) >> 2] = number
        return self._topic(number, name) if number else None

    def _topic(self, number: int, name: bytes) -> Topic:
        topic = self._topics.get(number)
        if topic is None:
            rule = self._config.batching_for(name)
            topic = self._topics[number] = Topic(self._slab, number, name, rule, self._rng)
            if self._view is not None:
                topic.take_view(self._view.topics.get(name))
        return topic

    def _without_long(self, topic: Topic, segment: Segment) -> list[Segment]:
        """Discard the messages of a segment that are too long for Kafka; the rest."""
        limit = self._config.batching.message_max_bytes - OVERHEAD
        parts = kernels.by_size(self._slab, segment, limit)
        too_long = [part for fits, part in parts if not fits]
        self._discards.settle(too_long, DiscardReason.LONG_MSG, topic.name, Counter.DiscardLongMsg)
        return [part for fits, part in parts if fits]

    def _route_to(self, topic: Topic, segment: Segment, run: Run, now_ms: int) -> None:
        if run.flags & lay.FLAG_PARTITION_KEY:
            self._row.add(Counter.RoutePartitionKeyMsg, segment.records)
            self._route_keyed(topic, segment, run)
            return
        self._row.add(Counter.RouteAnyPartitionMsg, segment.records)
        if topic.batch is None:
            self._send_any(topic, [segment], Kind.QUEUE, now_ms)
            return
        self._row.add(Counter.PerTopicBatchAnyPartition, segment.records)
        for batch in topic.batch.add(segment, now_ms):
            self._send_any(topic, batch, Kind.BATCH, now_ms)
        if self._draining:
            self._send_any(topic, topic.batch.flush(), Kind.BATCH, now_ms)

    def _route_keyed(self, topic: Topic, segment: Segment, run: Run) -> None:
        assert topic.view is not None
        count = len(topic.view.partitions)
        targets = [topic.view.designated(index) for index in range(count)]
        if not targets or targets[0] is None:
            topic.parked_keyed.append(segment)
            self.want_metadata(0)
            return
        if run.partition_index >= 0 and run.partition_count == count:
            parts = [(targets[run.partition_index], segment)]
        else:
            known = [target for target in targets if target is not None]
            parts = [*kernels.by_partition(self._slab, segment, known)]
        for partition, part in parts:
            assert partition is not None
            self._bind([part], partition)
            self._send(topic.number, partition, [part], Kind.QUEUE)

    def _send_any(self, topic: Topic, segments: list[Segment], kind: Kind, now_ms: int) -> None:
        """Send AnyPartition messages to the partition whose turn it is, behind those that wait already."""
        if not segments:
            return
        partition = None
        if not topic.parked:
            partition = topic.next_partition(lambda number: self._is_open(topic.number, number), now_ms)
        if partition is None:
            topic.parked += segments
            self.want_metadata(now_ms + self._config.delivery.min_pause_delay_ms)
            return
        self._bind(segments, partition)
        self._send(topic.number, partition, segments, kind)

    def _bind(self, segments: Iterable[Segment], partition: int) -> None:
        for segment in segments:
            place(self._slab, segment, partition, -1, -1, opens_batch=False)

    # --- to the dispatchers ------------------------------------------------------------------------------------------

    def _slot_for(self, topic: int, partition: int) -> int | None:
        """The slot of the partition's leader, if it is in service."""
        known = self._topics.get(topic)
        if known is None or known.view is None:
            return None
        leader = known.view.leaders.get(partition)
        return None if leader is None else self._slots.slot_of(leader)

    def _is_open(self, topic: int, partition: int) -> bool:
        slot = self._slot_for(topic, partition)
        route = self._routes.get((topic, partition))
        return slot is not None and self._scope(slot).flowing and (route is None or route.flowing)

    def _scope(self, slot: int) -> Scope:
        scope = self._scopes.get(slot)
        if scope is None:
            scope = self._scopes[slot] = Scope(self._new_backoff(), ScopeState.SYNCING)
        return scope

    def _new_backoff(self) -> PauseBackoff:
        delivery = self._config.delivery
        return PauseBackoff(
            delivery.pause_rate_limit_initial_ms,
            delivery.pause_rate_limit_max_double,
            delivery.min_pause_delay_ms,
            self._rng,
        )

    def _route_for(self, topic: int, partition: int) -> Route:
        route = self._routes.get((topic, partition))
        if route is None:
            route = self._routes[topic, partition] = Route(self._new_backoff())
            self._sequences.ensure(topic, partition)
            self._topic(topic, self._table.name_of(topic))
        return route

    def _send(self, topic: int, partition: int, segments: list[Segment], kind: Kind) -> None:
        """Send to the partition's dispatcher, or keep until its scope flows again."""
        route = self._route_for(topic, partition)
        slot = self._slot_for(topic, partition)
        if route.holds_any or slot is None or not self._is_open(topic, partition) or route.slot not in {None, slot}:
            route.came_meanwhile += segments
            return
        route.slot = slot
        self._post(slot, Parcel(kind, topic, partition, segments))

    def _post(self, slot: int, parcel: Parcel) -> None:
        """The hand-over: first the word in the slab, then the doorbell."""
        state = State.ASSIGNED_SENT if parcel.kind is Kind.SENT else State.ASSIGNED
        kernels.mark(self._slab, parcel.segments, word(state, slot))
        self._outbox.setdefault(slot, []).append(parcel)

    # --- batches by time ---------------------------------------------------------------------------------------------

    def flush_due(self, now_ms: int) -> None:
        """Send the batches whose time has come."""
        for topic in self._topics.values():
            batch = topic.batch
            if batch is not None and batch.due_ms is not None and (self._draining or batch.due_ms <= now_ms):
                self._send_any(topic, batch.flush(), Kind.BATCH, now_ms)

    def drain(self, now_ms: int) -> None:
        """From now on nothing waits for company."""
        self._draining = True
        self.take_filled(now_ms)
        for topic in self._topics.values():
            if topic.batch is not None:
                self._send_any(topic, topic.batch.flush(), Kind.BATCH, now_ms)

    # --- unknown topics ----------------------------------------------------------------------------------------------

    def _park_unknown(self, segment: Segment, run: Run, now_ms: int) -> None:
        """Keep messages of an unknown topic until the metadata was asked once; the topic may be new."""
        name = self._table.name_of(run.topic) if run.topic else name_of(self._slab, segment.chunk, segment.run, run)
        if self._refused.get(name, 0) > now_ms:
            self._discards.settle([segment], DiscardReason.BAD_TOPIC, name, Counter.DiscardBadTopicMsgOnRoute)
            return
        self._unknown.setdefault(name, []).append(segment)
        self.want_metadata(now_ms)

    def _settle_unknown(self, now_ms: int) -> None:
        assert self._view is not None
        unknown, self._unknown = self._unknown, {}
        self._refused = {name: until for name, until in self._refused.items() if until > now_ms}
        for name, segments in unknown.items():
            if name in self._view.topics:
                self._accept(segments, now_ms)
            else:
                self._refused[name] = now_ms + UNKNOWN_TOPIC_MS
                self._discards.settle(segments, DiscardReason.BAD_TOPIC, name, Counter.DiscardBadTopicMsgOnRoute)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> bool:
        """New metadata, from a fetch that was started at `started_ms`; True when it differs from what we had."""
        changed = view != self._view
        self._view = view
        self._metadata_wanted_ms = None
        self._addresses.update(view.brokers)
        for node in view.in_service:
            self._slots.give(node)
        for topic in list(self._topics.values()):
            self._renew(topic, view.topics.get(topic.name))
        self._move_scopes(started_ms, now_ms)
        self._settle_unknown(now_ms)
        early, self._early = self._early, []
        self._accept(early, now_ms)
        self._unpark(now_ms)
        return changed

    def _renew(self, topic: Topic, view: TopicView | None) -> None:
        topic.take_view(view)
        if view is not None:
            self._table.add(topic.name, len(view.partitions))
            return
        gone = topic.parked + topic.parked_keyed + (topic.batch.flush() if topic.batch is not None else [])
        topic.parked, topic.parked_keyed = [], []
        for (number, _), route in self._routes.items():
            if number == topic.number:
                sent, rest = route.empty()
                gone += sent + rest
        self._discards.settle(gone, DiscardReason.BAD_TOPIC, topic.name, Counter.DiscardBadTopicOnReroute)

    def _move_scopes(self, started_ms: int, now_ms: int) -> None:
        """Let paused scopes flow again where the metadata allows, and follow leaders that moved."""
        for scope in self._scopes.values():
            if scope.state is ScopeState.WAITING:
                if started_ms >= scope.not_before_ms:
                    scope.step(ScopeEvent.RESUME)
                    self._row.add(Counter.PauseFinished)
                else:
                    self.want_metadata(scope.not_before_ms)
        for (topic, partition), route in self._routes.items():
            self._move_route(topic, partition, route, started_ms, now_ms)

    def _move_route(self, topic: int, partition: int, route: Route, started_ms: int, now_ms: int) -> None:
        """Send what a route holds to the leader's dispatcher, or see to it that somebody asks again."""
        slot = self._slot_for(topic, partition)
        if route.flowing and route.slot is not None and slot not in {None, route.slot}:
            self._follow_leader(topic, partition, route, now_ms)
        if route.state is ScopeState.HANDING_BACK or (route.flowing and not route.holds_any):
            return
        if started_ms < route.not_before_ms:
            self.want_metadata(route.not_before_ms)
        elif slot is None:
            route.put_off(now_ms)
            self.want_metadata(route.not_before_ms)
        elif self._scope(slot).flowing:
            if not route.flowing:
                route.step(ScopeEvent.RESUME)
                self._row.add(Counter.PauseFinished)
            self._send_held(topic, partition, route, slot)

    def _follow_leader(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """The leader moved without an error: have the old one's dispatcher hand the partition back."""
        assert route.slot is not None
        route.step(ScopeEvent.PAUSE)
        route.not_before_ms = now_ms
        if self._scope(route.slot).flowing:
            self._post(route.slot, Parcel(Kind.HAND_BACK, topic, partition))

    def _send_held(self, topic: int, partition: int, route: Route, slot: int) -> None:
        sent, rest = route.empty()
        route.slot = slot
        if sent:
            self._post(slot, Parcel(Kind.SENT, topic, partition, sent))
        if rest:
            self._post(slot, Parcel(Kind.BATCH, topic, partition, rest))

    def _unpark(self, now_ms: int) -> None:
        for topic in self._topics.values():
            if not topic.holds_any or topic.view is None:
                continue
            parked, topic.parked = topic.parked, []
            self._send_any(topic, parked, Kind.BATCH, now_ms)
            keyed, topic.parked_keyed = topic.parked_keyed, []
            for segment in keyed:
                self._route_keyed(topic, segment, read_run(self._slab, segment.chunk, segment.run))

    # --- pauses ------------------------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Words and returned records of one dispatcher; the first parcel says which."""
        slot = parcels[0].topic
        for kind, topic, partition, segments in parcels[1:]:
            if kind is Kind.PAUSED:
                self._pause(slot, topic, partition, now_ms)
            elif kind is Kind.HANDED_BACK:
                self._handed_back(slot, topic, partition, now_ms)
            elif kind is Kind.HELLO:
                self._resync(slot)
            elif kind is Kind.SYNCED:
                self._synced(slot, now_ms)
            else:
                self._take_back(slot, kind, topic, partition, segments)

    def _pause(self, slot: int, topic: int, partition: int, now_ms: int) -> None:
        scope = self._scope(slot) if partition == EVERYTHING else self._route_for(topic, partition)
        if scope.pause(now_ms):
            self._row.add(Counter.PauseStarted)
        self.want_metadata(scope.not_before_ms)
        self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))

    def _take_back(self, slot: int, kind: Kind, topic: int, partition: int, segments: Iterable[Segment]) -> None:
        sent = kind is Kind.RETURNED_SENT
        state = State.RETURNED_SENT if sent else State.RETURNED
        taken = kernels.take(self._slab, segments, word(state, slot), self._mine_sent if sent else self._mine)
        route = self._route_for(topic, partition)
        (route.returned_sent if sent else route.returned).extend(taken)

    def _handed_back(self, slot: int, topic: int, partition: int, now_ms: int) -> None:
        if partition != EVERYTHING:
            self._route_is_back(self._route_for(topic, partition))
            self.want_metadata(self._routes[topic, partition].not_before_ms)
            return
        scope = self._scope(slot)
        scope.step(ScopeEvent.HANDED_BACK)
        self.want_metadata(max(now_ms, scope.not_before_ms))
        for route in self._routes.values():
            if route.slot == slot:
                self._route_is_back(route)

    @staticmethod
    def _route_is_back(route: Route) -> None:
        route.step(ScopeEvent.HANDED_BACK)
        route.slot = None

    # --- after a death -----------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> None:
        """Find in the slab what a predecessor held, and agree anew with every dispatcher."""
        for found in sweep(self._slab, _DISPATCHERS):
            self._route_for(found.topic, found.partition).slot = found.holder
        for _, slot in self._slots.pairs():
            self._resync(slot)
        self._sweep_in(now_ms)

    def _resync(self, slot: int) -> None:
        """Agree with a dispatcher on what it holds.

        Frames may have been lost, so the dispatcher is told of everything that is assigned to it, in order.  Until it
        has answered nothing more is sent to it: what it returned to somebody who died comes first.
        """
        self._scope(slot).step(ScopeEvent.HELLO)
        self._outbox[slot] = [Parcel(Kind.RESYNC)]
        assigned = sweep(self._slab, (State.ASSIGNED, State.ASSIGNED_SENT), slot)
        sent = [found for found in assigned if found.state is State.ASSIGNED_SENT]
        for (topic, partition), some in _by_partition(sent).items():
            self._outbox[slot].append(Parcel(Kind.SENT, topic, partition, some))
        for found in assigned:
            if found.state is State.ASSIGNED:
                self._outbox[slot].append(Parcel(Kind.BATCH, found.topic, found.partition, [found.segment]))

    def _synced(self, slot: int, now_ms: int) -> None:
        scope = self._scope(slot)
        scope.step(ScopeEvent.SYNCED)
        for (topic, partition), route in self._routes.items():
            if route.slot == slot and route.state is ScopeState.HANDING_BACK:
                self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))
            elif route.holds_any:
                self._move_route(topic, partition, route, now_ms, now_ms)
        self._unpark(now_ms)

    def _sweep_in(self, now_ms: int) -> None:
        """Take over what the router before held; of what inputs handed over only a snapshot."""
        held = [found for found in sweep(self._slab, _ROUTED) if found.word not in {self._mine, self._mine_sent}]
        for found in sorted([*held, *sweep_filled(self._slab)], key=lambda item: item.arrival):
            sent = found.state is State.ROUTED_SENT
            to = self._mine_sent if sent else self._mine
            for segment in kernels.take(self._slab, [found.segment], found.word, to):
                self._adopt(segment, found.topic, found.partition, now_ms, sent=sent)

    def take_filled(self, now_ms: int) -> None:
        """Take what an input handed over that died before its doorbell was heard."""
        self.on_runs([found.segment for found in sweep_filled(self._slab)], now_ms)

    def _adopt(self, segment: Segment, topic: int, partition: int, now_ms: int, *, sent: bool) -> None:
        """Take over a segment: bound ones to their route, others as if they came from the input."""
        if not topic or partition < 0:
            self._accept([segment], now_ms)
            return
        route = self._route_for(topic, partition)
        (route.returned_sent if sent else route.returned).append(segment)
        self.want_metadata(now_ms)


def _by_partition(found: Iterable[Found]) -> dict[tuple[int, int], list[Segment]]:
    """Segments by topic and partition, in order."""
    parts: dict[tuple[int, int], list[Segment]] = {}
    for item in found:
        parts.setdefault((item.topic, item.partition), []).append(item.segment)
    return parts
