"""Assignment of partitions to dispatchers: sending, returning, pausing and resuming.

Every partition with traffic has a `Route`, every dispatcher a `DispatcherScope` (`routes`).  Messages that cannot go
out wait in their route, ROUTED in the slab.  `core` chooses the partition of a message.

One dispatcher at a time holds a partition: `Route.slot` names it until its HANDED_BACK.  Each HAND_BACK has exactly one
HANDED_BACK, so the router sends HAND_BACK once in a pause.  A new process on either side makes all earlier frames void:
the router sends RESYNC with a new number, and sends nothing else until SYNCED with that number arrives.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.pipeline.corruption import quarantine
from bruce_mp.router.backoff import PauseBackoff
from bruce_mp.router.dispatchers import DispatcherSet
from bruce_mp.router.routes import DispatcherScope, LeaderlessBackoff, Route, ScopeEvent, ScopeState
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import find, sweep
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.config.sections import Delivery
    from bruce_mp.router.cluster import Address, ClusterView
    from bruce_mp.router.metadata_refresh import RefreshSchedule
    from bruce_mp.router.outbox import Outbox
    from bruce_mp.router.routes import Scope
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import Found
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Assignments"]

_HELD_BY_DISPATCHERS: Final = (
    RunState.ASSIGNED,
    RunState.ASSIGNED_SENT,
    RunState.QUEUED,
    RunState.IN_FLIGHT,
    RunState.RETURNED,
    RunState.RETURNED_SENT,
)
"""Includes RETURNED records: newer ones must not pass them before their dispatcher announces them."""

_ASSIGNED: Final = (RunState.ASSIGNED, RunState.ASSIGNED_SENT)

_TopicPartition = tuple[int, int]


class Assignments:
    """Routes and the scopes of dispatchers.  `leader_of` returns a partition's leader, None if none is available.

    Times are in ms on one steady clock.
    """

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        delivery: Delivery,
        *,
        tables: SlabTables,
        outbox: Outbox,
        incarnation: int,
        leader_of: Callable[[int, int], int | None],
        refresh: RefreshSchedule,
        rng: random.Random,
    ) -> None:
        self._slab = slab
        self._row = row
        self._delivery = delivery
        self._incarnation = incarnation
        self._leader_of = leader_of
        self._refresh = refresh
        self._rng = rng
        self._tables = tables
        self._dispatchers = DispatcherSet(slab, tables, self._used_slots)
        self._slots = self._dispatchers.slots
        self._outbox = outbox
        self._peers: dict[int, DispatcherScope] = {}
        self._sessions = count(1)
        self._routes: dict[_TopicPartition, Route] = {}
        self._leaderless_backoff = LeaderlessBackoff(self._new_backoff())
        self._open: dict[_TopicPartition, int] = {}
        """Slots of the partitions known to be open.  New metadata and each frame of a dispatcher clear this map,
        because either may close a partition.  Adoption of a previous router's records comes before the first entry."""

    # --- queries of the process --------------------------------------------------------------------------------------

    def wanted(self) -> dict[int, tuple[int, Address]] | None:
        """Return the dispatchers to run: see `DispatcherSet.wanted`."""
        return self._dispatchers.wanted()

    def paused(self) -> list[tuple[int | None, _TopicPartition | None, Scope]]:
        """Return the paused scopes: (slot, None, dispatcher) or (its slot, (topic, partition), route)."""
        peers = [(slot, None, peer) for slot, peer in self._peers.items() if peer.paused]
        return [*peers, *((route.slot, key, route) for key, route in self._routes.items() if route.paused)]

    def leaderless(self) -> list[_TopicPartition]:
        """Return topic and partition of the routes that wait only for a leader in service."""
        held = (key for key, route in self._routes.items() if route.has_waiting and not route.paused)
        return [key for key in held if self._slot_for(*key) is None]

    def _used_slots(self) -> set[int | None]:
        return {route.slot for route in self._routes.values()}

    # --- sending -----------------------------------------------------------------------------------------------------

    def topics(self) -> set[int]:
        """Return the topics with messages that a dispatcher may hold or that wait for one."""
        return {topic for topic, _ in self._routes}

    def _slot_for(self, topic: int, partition: int) -> int | None:
        """Return the slot of the partition's leader; None if no leader is in service."""
        leader = self._leader_of(topic, partition)
        return None if leader is None else self._slots.slot_of(leader)

    def is_open(self, topic: int, partition: int) -> bool:
        """Return True if messages for the partition can go out now."""
        if (topic, partition) in self._open:
            return True
        slot = self._slot_for(topic, partition)
        route = self._routes.get((topic, partition))
        return slot is not None and self._peer(slot).flowing and (route is None or route.flowing)

    def is_starting(self, topic: int, partition: int) -> bool:
        """Return True if the partition's dispatcher has not answered RESYNC yet."""
        slot = self._slot_for(topic, partition)
        return slot is not None and self._peer(slot).state is ScopeState.SYNCING

    def send(
        self, kind: ParcelKind, runs: Mapping[_TopicPartition, list[Segment]], now_ms: int
    ) -> dict[_TopicPartition, list[Segment]]:
        """Bind segments to their partitions, and send them to the dispatchers or keep them until their scopes flow.

        All segments of kind QUEUE for a dispatcher share a parcel; any other kind has one key.  Return the segments of
        the partitions for which the slab's partition table has no room.
        """
        refused: dict[_TopicPartition, list[Segment]] = {}
        by_slot: dict[int, dict[_TopicPartition, list[Segment]]] = defaultdict(dict)
        for key, segments in runs.items():
            slot = self._open.get(key)
            if slot is not None:
                by_slot[slot][key] = segments
            elif not self._has_room(*key):
                refused[key] = segments
            elif (slot := self._slot_to_send(*key, now_ms)) is not None:
                by_slot[slot][key] = segments
            else:
                self._routes[key].came_meanwhile += self._bind({key: segments})
        for slot, its in by_slot.items():
            bound = self._bind(its)
            if kind is ParcelKind.QUEUE:
                self._outbox.post_queue(slot, its, bound)
            elif bound:
                self._outbox.post(slot, Parcel(kind, *next(iter(its)), bound))
        return refused

    def _has_room(self, topic: int, partition: int) -> bool:
        """Return True if the slab's partition table has or can take this partition."""
        return (topic, partition) in self._routes or self._tables.partitions.ensure(topic, partition)

    def _slot_to_send(self, topic: int, partition: int, now_ms: int) -> int | None:
        """Give a partition to its leader's dispatcher and return the slot; None if messages have to wait."""
        route = self._route(topic, partition)
        slot = self._slot_for(topic, partition)
        if slot is None:
            self.request_leader(now_ms, now_ms)
        if route.has_waiting or slot is None or route.slot not in {None, slot} or not self.is_open(topic, partition):
            return None
        self._give(route, slot)
        self._open[topic, partition] = slot
        return slot

    def _bind(self, runs: Mapping[_TopicPartition, list[Segment]]) -> list[Segment]:
        """Bind segments to their partitions, and return them without damaged ones."""
        segments: list[Segment] = []
        partitions: list[int] = []
        for (_, partition), its in runs.items():
            segments += its
            partitions += [partition] * len(its)
        try:
            kernels.bind_partition(self._slab, segments, partitions)
        except SlabError:
            return list(self._bind_each(zip(segments, partitions, strict=True)))
        return segments

    def _bind_each(self, places: Iterable[tuple[Segment, int]]) -> Iterator[Segment]:
        """Bind segments one by one, and refuse damaged ones."""
        for segment, partition in places:
            try:
                kernels.bind_partition(self._slab, [segment], [partition])
                yield segment
            except SlabError as error:
                quarantine(self._row, error)

    def flush(self, topic: int) -> None:
        """Send FLUSH for a topic to the dispatchers that got records of it since the last FLUSH."""
        self._outbox.post_flush(topic)

    def request_leader(self, started_ms: int, now_ms: int) -> None:
        """Request metadata for a leader that the fetch begun at `started_ms` did not name."""
        self._refresh.request(self._leaderless_backoff.due_ms(started_ms, now_ms))

    def _give(self, route: Route, slot: int | None) -> None:
        if route.slot != slot:
            route.slot = slot
            self._dispatchers.on_holder_changed()

    def _peer(self, slot: int) -> DispatcherScope:
        peer = self._peers.get(slot)
        if peer is None:
            peer = self._peers[slot] = DispatcherScope(self._new_backoff())
        return peer

    def _route(self, topic: int, partition: int) -> Route:
        route = self._routes.get((topic, partition))
        if route is None:
            route = self._routes[topic, partition] = Route(self._new_backoff())
            self._tables.partitions.ensure(topic, partition)
        return route

    def _new_backoff(self) -> PauseBackoff:
        return PauseBackoff(*self._delivery.backoff, self._rng)

    def apply_config(self, delivery: Delivery) -> None:
        """Apply a reloaded config."""
        self._delivery = delivery
        self._leaderless_backoff.backoff.apply_config(*delivery.backoff)
        for scope in (*self._peers.values(), *self._routes.values()):
            scope.backoff.apply_config(*delivery.backoff)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> None:
        """Follow leaders that moved, and resume paused scopes where the metadata allows."""
        self._open.clear()
        for slot in self._dispatchers.on_metadata(view, now_ms):
            self._peers.pop(slot, None)
            self._outbox.remove_slot(slot)
        for peer in self._peers.values():
            if peer.state is ScopeState.WAITING:
                self._resume_or_wait(peer, started_ms)
        for (topic, partition), route in self._routes.items():
            self._move(topic, partition, route, started_ms, now_ms)

    def hand_back_all(self, now_ms: int) -> None:
        """Request all messages back from all dispatchers, to route them again."""
        self._open.clear()
        for slot, peer in self._peers.items():
            if peer.flowing and peer.pause(now_ms):
                self._row.add(Counter.PauseStarted)
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, 0, EVERYTHING))

    def _resume_or_wait(self, scope: Scope, started_ms: int) -> bool:
        """Resume a scope if its back-off ended before the fetch began; else request metadata for its end."""
        if started_ms < scope.not_before_ms:
            self._refresh.request(scope.not_before_ms)
            return False
        scope.step(ScopeEvent.RESUME)
        self._row.add(Counter.PauseFinished)
        return True

    def _move(self, topic: int, partition: int, route: Route, started_ms: int, now_ms: int) -> None:
        """Send a route's waiting messages to the leader's dispatcher, or request metadata again."""
        slot = self._slot_for(topic, partition)
        if route.flowing and route.slot is not None and slot not in {None, route.slot}:
            self._recall(topic, partition, route, now_ms)
        if route.state is ScopeState.HANDING_BACK:
            return
        if slot is None:
            if route.has_waiting:
                self.request_leader(started_ms, now_ms)
        elif self._peer(slot).flowing and (route.flowing or self._resume_or_wait(route, started_ms)):
            self._send_held(topic, partition, route, slot)

    def _recall(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """Request a partition back after its leader moved without an error or its topic disappeared."""
        assert route.slot is not None
        route.step(ScopeEvent.PAUSE)
        route.not_before_ms = route.since_ms = now_ms
        self._row.add(Counter.PauseStarted)
        if self._peer(route.slot).flowing:
            self._outbox.post(route.slot, Parcel(ParcelKind.HAND_BACK, topic, partition))

    def _send_held(self, topic: int, partition: int, route: Route, slot: int) -> None:
        """Send a route's waiting messages: built batches first, then the rest in order of arrival."""
        if not route.has_waiting:
            return
        is_jumbled = route.is_jumbled
        sent, rest = route.pop_all()
        if is_jumbled:
            rest.sort(key=lambda segment: find(self._slab, segment).arrival)
        self._give(route, slot)
        if sent:
            self._outbox.post(slot, Parcel(ParcelKind.SENT, topic, partition, sent))
        if rest:
            self._outbox.post(slot, Parcel(ParcelKind.WAITED, topic, partition, rest))

    def remove_topic(self, topic: int, now_ms: int) -> list[Segment]:
        """Remove a topic and return the segments of its routes; request the others back from dispatchers."""
        held: list[Segment] = []
        self._outbox.remove_topic(topic)
        for key, route in [(key, route) for key, route in self._routes.items() if key[0] == topic]:
            sent, rest = route.pop_all()
            held += sent + rest
            if route.slot is None:
                self._row.add(Counter.PauseFinished, int(route.paused))
                del self._routes[key]
            elif route.flowing:
                self._recall(*key, route, now_ms)
        return held

    # --- frames of dispatchers ---------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Process one dispatcher's frame; its first parcel holds slot and incarnation."""
        _, slot, incarnation, _ = parcels[0]
        self._open.clear()
        peer = self._peer(slot)
        if incarnation < peer.incarnation:
            return  # the sender is dead; its successor repeats every report that still holds
        peer.incarnation = incarnation
        for parcel in parcels[1:]:
            if parcel.kind in {ParcelKind.RETURNED, ParcelKind.RETURNED_SENT}:
                self._take_back(slot, parcel)
            elif parcel.kind is ParcelKind.HELLO:
                self._resync(slot, sweep(self._slab, _ASSIGNED, slot))
            elif parcel.kind is ParcelKind.SYNCED:
                if (parcel.topic, parcel.partition) == (peer.session, self._incarnation):
                    self._synced(slot, now_ms)
            elif peer.state is not ScopeState.SYNCING:
                self._obey(slot, peer, parcel, now_ms)

    def _obey(self, slot: int, peer: DispatcherScope, parcel: Parcel, now_ms: int) -> None:
        kind, topic, partition, _ = parcel
        scope = peer if partition == EVERYTHING else self._route(topic, partition)
        if kind is ParcelKind.PAUSED and scope.pause(now_ms):
            self._row.add(Counter.PauseStarted)
            if scope is peer or peer.flowing:  # else HAND_BACK for everything includes this partition
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, topic, partition))
        elif kind is ParcelKind.HANDED_BACK:
            self._handed_back(slot, scope, now_ms)

    def _take_back(self, slot: int, parcel: Parcel) -> None:
        sent = parcel.kind is ParcelKind.RETURNED_SENT
        theirs = state_word(RunState.RETURNED_SENT if sent else RunState.RETURNED, slot)
        mine = state_word(RunState.ROUTED_SENT if sent else RunState.ROUTED, self._incarnation)
        taken = kernels.claim(self._slab, parcel.segments, theirs, mine)
        route = self._route(parcel.topic, parcel.partition)
        (route.returned_sent if sent else route.returned).extend(taken)

    def _handed_back(self, slot: int, scope: Scope, now_ms: int) -> None:
        scope.step(ScopeEvent.HANDED_BACK)
        self._refresh.request(max(now_ms, scope.not_before_ms))
        if isinstance(scope, Route):
            self._give(scope, None)
            return
        for route in self._routes.values():
            if route.slot == slot:
                self._give(route, None)
                if route.state is ScopeState.HANDING_BACK:
                    route.step(ScopeEvent.HANDED_BACK)

    # --- after a death -----------------------------------------------------------------------------------------------

    def adopt(self, topic: int, partition: int, segments: Iterable[Segment], *, sent: bool) -> None:
        """Add a previous router's segments to a partition's route."""
        route = self._route(topic, partition)
        (route.returned_sent if sent else route.returned).extend(segments)
        route.is_jumbled = True

    def recover(self) -> None:
        """Find the slots that hold partitions, and resync with every dispatcher; call `adopt` first."""
        held = sweep(self._slab, _HELD_BY_DISPATCHERS)
        for found in held:
            self._give(self._route(found.topic, found.partition), found.holder)
        for _, slot in self._slots.pairs():
            self._resync(slot, [found for found in held if found.holder == slot and found.state in _ASSIGNED])

    def _resync(self, slot: int, assigned: list[Found]) -> None:
        """Send RESYNC with all ASSIGNED records of a dispatcher; `assigned` are those it may not have claimed.

        Frames may have been lost, so RESYNC announces all assigned records in order.  The router sends nothing more
        until SYNCED, because records that the dispatcher returned to a dead router come first.
        """
        peer = self._peer(slot)
        if peer.paused:
            self._row.add(Counter.PauseFinished)
        peer.step(ScopeEvent.HELLO)
        peer.session = next(self._sessions)
        fresh = (found for found in assigned if found.state is RunState.ASSIGNED)
        sent = _by_partition(found for found in assigned if found.state is RunState.ASSIGNED_SENT)
        parcels = [Parcel(ParcelKind.RESYNC, peer.session)]
        for (topic, partition), some in sent.items():
            # A dead router may have assigned a batch in part; its rest goes along, so that no batch is cut.
            route = self._route(topic, partition)
            rest, route.returned_sent = route.returned_sent, []
            kernels.set_state(self._slab, rest, state_word(RunState.ASSIGNED_SENT, slot))
            parcels.append(Parcel(ParcelKind.SENT, topic, partition, some + rest))
        parcels += [Parcel(ParcelKind.WAITED, part.topic, part.partition, [part.segment]) for part in fresh]
        self._outbox.replace(slot, parcels)

    def _synced(self, slot: int, now_ms: int) -> None:
        self._peer(slot).step(ScopeEvent.SYNCED)
        for (topic, partition), route in self._routes.items():
            if route.slot == slot and route.state is ScopeState.HANDING_BACK:
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, topic, partition))
            else:
                self._move(topic, partition, route, now_ms, now_ms)


def _by_partition(found: Iterable[Found]) -> dict[_TopicPartition, list[Segment]]:
    """Group segments by topic and partition, in order."""
    parts: dict[_TopicPartition, list[Segment]] = {}
    for item in found:
        parts.setdefault((item.topic, item.partition), []).append(item.segment)
    return parts
