"""From partitions to dispatchers: who holds what, what is paused, and what is said to whom.

Every partition with traffic has a `Route`, every dispatcher a `Peer` (`routes`).  What cannot go out waits in its
route, marked ROUTED in the slab.  This module sends, takes back, pauses and resumes; which partition a message goes to
is decided in `core`.

A partition is with one dispatcher at a time: `Route.slot` names it until it has said that everything is handed back.
Each HAND_BACK has exactly one HANDED_BACK, so it is said once in a pause.  A new process on either side makes all words
from before void: RESYNC with a new number goes out, and only SYNCED with that number ends the silence.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipes.frames import EVERYTHING, Kind, Parcel
from bruce_mp.router.backoff import PauseBackoff
from bruce_mp.router.cluster import Address
from bruce_mp.router.routes import Drought, Peer, Route, ScopeEvent, ScopeState
from bruce_mp.router.slots import SlotTable
from bruce_mp.slab.layout import State, word
from bruce_mp.slab.recovery import find, sweep
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.config.sections import Delivery
    from bruce_mp.router.cluster import ClusterView
    from bruce_mp.router.routes import Scope
    from bruce_mp.router.tables import Tables
    from bruce_mp.router.wish import MetadataWish
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import Found
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Segment

__all__ = ["Dispatching"]

NOWHERE: Final = Address("", 0)
"""The address of a broker that is in no metadata: its dispatcher fails to connect and hands back what it holds."""

_HELD_BY_DISPATCHERS: Final = (
    State.ASSIGNED,
    State.ASSIGNED_SENT,
    State.QUEUED,
    State.IN_FLIGHT,
    State.RETURNED,
    State.RETURNED_SENT,
)
"""What is RETURNED has to come from its dispatcher first: until then nothing newer may pass it."""

_ASSIGNED: Final = (State.ASSIGNED, State.ASSIGNED_SENT)

_Key = tuple[int, int]


class Dispatching:
    """See the module's text.  `leader_of` says which broker leads a partition, None if none is available.

    Times are in ms on one steady clock.
    """

    def __init__(
        self,
        slab: Slab,
        row: Row,
        delivery: Delivery,
        *,
        tables: Tables,
        incarnation: int,
        leader_of: Callable[[int, int], int | None],
        wish: MetadataWish,
        rng: random.Random,
    ) -> None:
        self._slab = slab
        self._row = row
        self._delivery = delivery
        self._incarnation = incarnation
        self._leader_of = leader_of
        self._wish = wish
        self._rng = rng
        self._tables = tables
        self._slots = SlotTable(slab)
        self._addresses: dict[int, Address] = {}
        self._in_service: frozenset[int] | None = None
        self._peers: dict[int, Peer] = {}
        self._sessions = count(1)
        self._routes: dict[_Key, Route] = {}
        self._drought = Drought(self._new_backoff())
        self._outbox: dict[int, list[Parcel]] = {}
        self._gatherers: dict[int, set[int]] = defaultdict(set)
        """By topic: the slots of dispatchers that may gather some of it.  What they gather at a RESYNC or a HAND_BACK
        they make ready by themselves."""
        self._wanted: dict[int, tuple[int, Address]] | None = None
        self._open: dict[_Key, int] = {}
        """Partitions that messages went to, and their slots.  All are forgotten by whatever may close one: new metadata
        and the words of dispatchers; what a router before held is adopted before there is any."""

    # --- what the process asks ---------------------------------------------------------------------------------------

    def drain_outbox(self) -> dict[int, list[Parcel]]:
        """Parcels for dispatchers, by slot; the first one says who we are."""
        outbox, self._outbox = self._outbox, {}
        return {slot: [Parcel(Kind.FROM, 0, self._incarnation), *parcels] for slot, parcels in outbox.items()}

    def wanted(self) -> dict[int, tuple[int, Address]] | None:
        """Slot to (broker, address): one for each broker in service, and for those that still hold something.

        None while there is no metadata: those that there are go on as they are.
        """
        if self._wanted is None and self._in_service is not None:
            used = self._used_slots()
            self._wanted = {
                slot: (node, self._addresses.get(node, NOWHERE))
                for node, slot in self._slots.pairs()
                if node in self._in_service or slot in used
            }
        return self._wanted

    def paused(self) -> list[tuple[int | None, _Key | None, Scope]]:
        """The scopes that are paused: (slot, None, dispatcher) or (its slot, (topic, partition), route)."""
        peers = [(slot, None, peer) for slot, peer in self._peers.items() if peer.paused]
        return [*peers, *((route.slot, key, route) for key, route in self._routes.items() if route.paused)]

    def leaderless(self) -> list[_Key]:
        """Topic and partition of the routes that only wait for a leader in service."""
        held = (key for key, route in self._routes.items() if route.holds_any and not route.paused)
        return [key for key in held if self._slot_for(*key) is None]

    def _used_slots(self) -> set[int | None]:
        return {route.slot for route in self._routes.values()}

    # --- sending -----------------------------------------------------------------------------------------------------

    def has_room(self, topic: int, partition: int) -> bool:
        """Whether the slab's table of partitions has or can take this one."""
        return (topic, partition) in self._routes or self._tables.partitions.ensure(topic, partition)

    def topics(self) -> set[int]:
        """The topics of which something may be with a dispatcher, or wait for one."""
        return {topic for topic, _ in self._routes}

    def _slot_for(self, topic: int, partition: int) -> int | None:
        """The slot of the partition's leader, if it is in service."""
        leader = self._leader_of(topic, partition)
        return None if leader is None else self._slots.slot_of(leader)

    def is_open(self, topic: int, partition: int) -> bool:
        """Whether messages for the partition can go out now."""
        if (topic, partition) in self._open:
            return True
        slot = self._slot_for(topic, partition)
        route = self._routes.get((topic, partition))
        return slot is not None and self._peer(slot).flowing and (route is None or route.flowing)

    def is_starting(self, topic: int, partition: int) -> bool:
        """Whether the partition's dispatcher is about to take messages."""
        slot = self._slot_for(topic, partition)
        return slot is not None and self._peer(slot).state is ScopeState.SYNCING

    def send(self, topic: int, partition: int, segments: list[Segment], kind: Kind, now_ms: int) -> None:
        """Send to the partition's dispatcher, or keep until its scope flows again.  There is room for the partition."""
        route = self._route(topic, partition)
        slot = self._slot_for(topic, partition)
        if slot is None:
            self.want_leader(now_ms, now_ms)
        if route.holds_any or slot is None or route.slot not in {None, slot} or not self.is_open(topic, partition):
            route.came_meanwhile += segments
            return
        self._give(route, slot)
        self._post(slot, Parcel(kind, topic, partition, segments))
        self._open[topic, partition] = slot
        if kind is Kind.QUEUE:
            self._gatherers[topic].add(slot)

    def queue(self, runs: Mapping[_Key, list[Segment]]) -> Mapping[_Key, list[Segment]]:
        """Bind runs to their partitions, and send them for the dispatchers' own batching: one parcel for each.

        Those that are returned are to be bound, and sent by `send`: a partition was not found open yet, or a run among
        those for its dispatcher is damaged.
        """
        rest: dict[_Key, list[Segment]] = {}
        by_slot: dict[int, dict[_Key, list[Segment]]] = defaultdict(dict)
        for key, segments in runs.items():
            slot = self._open.get(key)
            (rest if slot is None else by_slot[slot])[key] = segments
        for slot, its in by_slot.items():
            try:
                self._queue(slot, its)
            except SlabError:
                rest |= its
        return rest

    def _queue(self, slot: int, runs: Mapping[_Key, list[Segment]]) -> None:
        bound: list[Segment] = []
        partitions: list[int] = []
        for (topic, partition), segments in runs.items():
            bound += segments
            partitions += [partition] * len(segments)
            self._gatherers[topic].add(slot)
        kernels.bind(self._slab, bound, partitions)
        self._post(slot, Parcel(Kind.QUEUE, segments=bound))

    def flush(self, topic: int) -> None:
        """Have the dispatchers send what they gather of a topic; who has got nothing of it since is left asleep."""
        for slot in self._gatherers.pop(topic, ()):
            self._post(slot, Parcel(Kind.FLUSH, topic))

    def want_leader(self, started_ms: int, now_ms: int) -> None:
        """Somebody waits for a leader, whom metadata that was asked for at `started_ms` did not name."""
        self._wish.want(self._drought.until(started_ms, now_ms))

    def _give(self, route: Route, slot: int | None) -> None:
        if route.slot != slot:
            route.slot = slot
            self._wanted = None

    def _post(self, slot: int, parcel: Parcel) -> None:
        """The hand-over: first the word in the slab, then the doorbell."""
        state = State.ASSIGNED_SENT if parcel.kind is Kind.SENT else State.ASSIGNED
        kernels.mark(self._slab, parcel.segments, word(state, slot))
        self._outbox.setdefault(slot, []).append(parcel)

    def _peer(self, slot: int) -> Peer:
        peer = self._peers.get(slot)
        if peer is None:
            peer = self._peers[slot] = Peer(self._new_backoff())
        return peer

    def _route(self, topic: int, partition: int) -> Route:
        route = self._routes.get((topic, partition))
        if route is None:
            route = self._routes[topic, partition] = Route(self._new_backoff())
            self._tables.partitions.ensure(topic, partition)
        return route

    def _new_backoff(self) -> PauseBackoff:
        return PauseBackoff(*self._delivery.backoff, self._rng)

    def apply(self, delivery: Delivery) -> None:
        """Go by this configuration from now on."""
        self._delivery = delivery
        self._drought.backoff.change(*delivery.backoff)
        for scope in (*self._peers.values(), *self._routes.values()):
            scope.backoff.change(*delivery.backoff)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> None:
        """Follow leaders that moved, and let paused scopes flow again where the metadata allows."""
        self._open.clear()
        self._addresses.update(view.brokers)
        self._in_service = view.in_service
        self._wanted = None
        self._renew_slots(view, now_ms)
        for peer in self._peers.values():
            if peer.state is ScopeState.WAITING:
                self._resume_or_wait(peer, started_ms)
        for (topic, partition), route in self._routes.items():
            self._move(topic, partition, route, started_ms, now_ms)

    def hand_back_all(self, now_ms: int) -> None:
        """Have everything that dispatchers hold handed back and sent anew."""
        self._open.clear()
        for slot, peer in self._peers.items():
            if peer.flowing and peer.pause(now_ms):
                self._row.add(Counter.PauseStarted)
                self._post(slot, Parcel(Kind.HAND_BACK, 0, EVERYTHING))

    def _renew_slots(self, view: ClusterView, now_ms: int) -> None:
        """Free the slots of brokers that are gone and hold nothing, and give slots to those that lead."""
        used = self._used_slots()
        for node, slot in self._slots.pairs():
            if node not in view.brokers and slot not in used:
                self._slots.free(node)
                self._peers.pop(slot, None)
                self._outbox.pop(slot, None)
        for node in view.in_service:
            if self._slots.give(node) is None:
                self._tables.say_full("brokers", f"messages for partitions that broker {node} leads wait.", now_ms)

    def _resume_or_wait(self, scope: Scope, started_ms: int) -> bool:
        """Resume a scope if its back-off was over when the fetch began; else have metadata fetched when it is."""
        if started_ms < scope.not_before_ms:
            self._wish.want(scope.not_before_ms)
            return False
        scope.step(ScopeEvent.RESUME)
        self._row.add(Counter.PauseFinished)
        return True

    def _move(self, topic: int, partition: int, route: Route, started_ms: int, now_ms: int) -> None:
        """Send what a route holds to the leader's dispatcher, or see to it that somebody asks again."""
        slot = self._slot_for(topic, partition)
        if route.flowing and route.slot is not None and slot not in {None, route.slot}:
            self._recall(topic, partition, route, now_ms)
        if route.state is ScopeState.HANDING_BACK:
            return
        if slot is None:
            if route.holds_any:
                self.want_leader(started_ms, now_ms)
        elif self._peer(slot).flowing and (route.flowing or self._resume_or_wait(route, started_ms)):
            self._send_held(topic, partition, route, slot)

    def _recall(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """The leader moved without an error, or the topic is gone: have the dispatcher hand the partition back."""
        assert route.slot is not None
        route.step(ScopeEvent.PAUSE)
        route.not_before_ms = route.since_ms = now_ms
        self._row.add(Counter.PauseStarted)
        if self._peer(route.slot).flowing:
            self._post(route.slot, Parcel(Kind.HAND_BACK, topic, partition))

    def _send_held(self, topic: int, partition: int, route: Route, slot: int) -> None:
        """Send what a route holds: batches that were built, then the rest in order of arrival."""
        if not route.holds_any:
            return
        is_jumbled = route.is_jumbled
        sent, rest = route.empty()
        if is_jumbled:
            rest.sort(key=lambda segment: find(self._slab, segment).arrival)
        self._give(route, slot)
        if sent:
            self._post(slot, Parcel(Kind.SENT, topic, partition, sent))
        if rest:
            self._post(slot, Parcel(Kind.HELD, topic, partition, rest))

    def forget(self, topic: int, now_ms: int) -> list[Segment]:
        """The topic is gone: what its routes held.  Dispatchers hand back what they hold of it."""
        held: list[Segment] = []
        self._gatherers.pop(topic, None)
        for key, route in [(key, route) for key, route in self._routes.items() if key[0] == topic]:
            sent, rest = route.empty()
            held += sent + rest
            if route.slot is None:
                self._row.add(Counter.PauseFinished, int(route.paused))
                del self._routes[key]
            elif route.flowing:
                self._recall(*key, route, now_ms)
        return held

    # --- words of dispatchers ----------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Words and returned records of one dispatcher; the first parcel says which."""
        _, slot, incarnation, _ = parcels[0]
        self._open.clear()
        peer = self._peer(slot)
        if incarnation < peer.incarnation:
            return  # from one that is dead; its successor says again what is still true
        peer.incarnation = incarnation
        for parcel in parcels[1:]:
            if parcel.kind in {Kind.RETURNED, Kind.RETURNED_SENT}:
                self._take_back(slot, parcel)
            elif parcel.kind is Kind.HELLO:
                self._resync(slot, sweep(self._slab, _ASSIGNED, slot))
            elif parcel.kind is Kind.SYNCED:
                if (parcel.topic, parcel.partition) == (peer.session, self._incarnation):
                    self._synced(slot, now_ms)
            elif peer.state is not ScopeState.SYNCING:
                self._obey(slot, peer, parcel, now_ms)

    def _obey(self, slot: int, peer: Peer, parcel: Parcel, now_ms: int) -> None:
        kind, topic, partition, _ = parcel
        scope = peer if partition == EVERYTHING else self._route(topic, partition)
        if kind is Kind.PAUSED and scope.pause(now_ms):
            self._row.add(Counter.PauseStarted)
            if scope is peer or peer.flowing:  # else it was told to hand everything back, and this with it
                self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))
        elif kind is Kind.HANDED_BACK:
            self._handed_back(slot, scope, now_ms)

    def _take_back(self, slot: int, parcel: Parcel) -> None:
        sent = parcel.kind is Kind.RETURNED_SENT
        theirs = word(State.RETURNED_SENT if sent else State.RETURNED, slot)
        mine = word(State.ROUTED_SENT if sent else State.ROUTED, self._incarnation)
        taken = kernels.take(self._slab, parcel.segments, theirs, mine)
        route = self._route(parcel.topic, parcel.partition)
        (route.returned_sent if sent else route.returned).extend(taken)

    def _handed_back(self, slot: int, scope: Scope, now_ms: int) -> None:
        scope.step(ScopeEvent.HANDED_BACK)
        self._wish.want(max(now_ms, scope.not_before_ms))
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
        """Keep what a router before held for a partition."""
        route = self._route(topic, partition)
        (route.returned_sent if sent else route.returned).extend(segments)
        route.is_jumbled = True

    def recover(self) -> None:
        """A new router, which has taken over what the one before held: note who has what, and agree with everybody."""
        held = sweep(self._slab, _HELD_BY_DISPATCHERS)
        for found in held:
            self._give(self._route(found.topic, found.partition), found.holder)
        for _, slot in self._slots.pairs():
            self._resync(slot, [found for found in held if found.holder == slot and found.state in _ASSIGNED])

    def _resync(self, slot: int, assigned: list[Found]) -> None:
        """Agree with a dispatcher on what it holds; `assigned` is what it may not have taken yet.

        Frames may have been lost, so the dispatcher is told of everything that is assigned to it, in order.  Until it
        has answered nothing more is sent to it: what it returned to somebody who died comes first.
        """
        peer = self._peer(slot)
        if peer.paused:
            self._row.add(Counter.PauseFinished)
        peer.step(ScopeEvent.HELLO)
        peer.session = next(self._sessions)
        fresh = (found for found in assigned if found.state is State.ASSIGNED)
        sent = _by_partition(found for found in assigned if found.state is State.ASSIGNED_SENT)
        self._outbox[slot] = [Parcel(Kind.RESYNC, peer.session)]
        for (topic, partition), some in sent.items():
            whole = some + self._assign_rest(slot, self._route(topic, partition))
            self._outbox[slot].append(Parcel(Kind.SENT, topic, partition, whole))
        self._outbox[slot] += [Parcel(Kind.HELD, part.topic, part.partition, [part.segment]) for part in fresh]

    def _assign_rest(self, slot: int, route: Route) -> list[Segment]:
        """The router before died while it assigned built batches: assign the rest as well, lest one be cut."""
        rest, route.returned_sent = route.returned_sent, []
        kernels.mark(self._slab, rest, word(State.ASSIGNED_SENT, slot))
        return rest

    def _synced(self, slot: int, now_ms: int) -> None:
        self._peer(slot).step(ScopeEvent.SYNCED)
        for (topic, partition), route in self._routes.items():
            if route.slot == slot and route.state is ScopeState.HANDING_BACK:
                self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))
            else:
                self._move(topic, partition, route, now_ms, now_ms)


def _by_partition(found: Iterable[Found]) -> dict[_Key, list[Segment]]:
    """Segments by topic and partition, in order."""
    parts: dict[_Key, list[Segment]] = {}
    for item in found:
        parts.setdefault((item.topic, item.partition), []).append(item.segment)
    return parts
