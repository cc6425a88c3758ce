"""From partitions to dispatchers: who holds what, what is paused, and what is said to whom.

Every partition with traffic has a `Route`, every dispatcher a `Scope` (`routes`).  What cannot go out waits in its
route, marked ROUTED in the slab.  This module sends, takes back, pauses and resumes; which partition a message goes to
is decided in `core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.pipes.frames import EVERYTHING, Kind, Parcel
from bruce_mp.router.backoff import PauseBackoff
from bruce_mp.router.cluster import Address
from bruce_mp.router.routes import Route, Scope, ScopeEvent, ScopeState
from bruce_mp.router.slots import SlotTable
from bruce_mp.slab.layout import State, word
from bruce_mp.slab.recovery import find, sweep
from bruce_mp.slab.tables import PartitionTable
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from bruce_mp.config.sections import Delivery
    from bruce_mp.router.cluster import ClusterView
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


class Dispatching:
    """See the module's text.  `leader_of` says which broker leads a partition, None if none is available.

    `mine` and `mine_sent` are the words of what this router holds.  Times are in ms on one steady clock.
    """

    def __init__(
        self,
        slab: Slab,
        row: Row,
        delivery: Delivery,
        *,
        mine: int,
        mine_sent: int,
        leader_of: Callable[[int, int], int | None],
        wish: MetadataWish,
        rng: random.Random,
    ) -> None:
        self._slab = slab
        self._row = row
        self._delivery = delivery
        self._mine = mine
        self._mine_sent = mine_sent
        self._leader_of = leader_of
        self._wish = wish
        self._rng = rng
        self._sequences = PartitionTable(slab)
        self._slots = SlotTable(slab)
        self._addresses: dict[int, Address] = {}
        self._in_service: frozenset[int] = frozenset()
        self._scopes: dict[int, Scope] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        self._outbox: dict[int, list[Parcel]] = {}
        self._wanted: dict[int, tuple[int, Address]] | None = None

    # --- what the process asks ---------------------------------------------------------------------------------------

    def drain_outbox(self) -> dict[int, list[Parcel]]:
        """Parcels for dispatchers, by slot."""
        outbox, self._outbox = self._outbox, {}
        return outbox

    def wanted(self) -> dict[int, tuple[int, Address]]:
        """Slot to (broker, address): one for each broker in service, and for those that still hold something."""
        if not self._addresses:
            return {}  # no metadata yet: a dispatcher could only fail to connect
        if self._wanted is None:
            used = {route.slot for route in self._routes.values()}
            self._wanted = {
                slot: (node, self._addresses.get(node, NOWHERE))
                for node, slot in self._slots.pairs()
                if node in self._in_service or slot in used
            }
        return self._wanted

    # --- sending -----------------------------------------------------------------------------------------------------

    def _slot_for(self, topic: int, partition: int) -> int | None:
        """The slot of the partition's leader, if it is in service."""
        leader = self._leader_of(topic, partition)
        return None if leader is None else self._slots.slot_of(leader)

    def is_open(self, topic: int, partition: int) -> bool:
        """Whether messages for the partition can go out now."""
        slot = self._slot_for(topic, partition)
        route = self._routes.get((topic, partition))
        return slot is not None and self._scope(slot).flowing and (route is None or route.flowing)

    def send(self, topic: int, partition: int, segments: list[Segment], kind: Kind) -> None:
        """Send to the partition's dispatcher, or keep until its scope flows again."""
        route = self._route(topic, partition)
        slot = self._slot_for(topic, partition)
        if route.holds_any or slot is None or route.slot not in {None, slot} or not self.is_open(topic, partition):
            route.came_meanwhile += segments
            return
        self._give(route, slot)
        self._post(slot, Parcel(kind, topic, partition, segments))

    def _give(self, route: Route, slot: int | None) -> None:
        if route.slot != slot:
            route.slot = slot
            self._wanted = None

    def _post(self, slot: int, parcel: Parcel) -> None:
        """The hand-over: first the word in the slab, then the doorbell."""
        state = State.ASSIGNED_SENT if parcel.kind is Kind.SENT else State.ASSIGNED
        kernels.mark(self._slab, parcel.segments, word(state, slot))
        self._outbox.setdefault(slot, []).append(parcel)

    def _scope(self, slot: int) -> Scope:
        scope = self._scopes.get(slot)
        if scope is None:
            scope = self._scopes[slot] = Scope(self._new_backoff(), ScopeState.SYNCING)
        return scope

    def _route(self, topic: int, partition: int) -> Route:
        route = self._routes.get((topic, partition))
        if route is None:
            route = self._routes[topic, partition] = Route(self._new_backoff())
            self._sequences.ensure(topic, partition)
        return route

    def _new_backoff(self) -> PauseBackoff:
        return PauseBackoff(
            self._delivery.pause_rate_limit_initial_ms,
            self._delivery.pause_rate_limit_max_double,
            self._delivery.min_pause_delay_ms,
            self._rng,
        )

    # --- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> None:
        """Follow leaders that moved, and let paused scopes flow again where the metadata allows."""
        self._addresses.update(view.brokers)
        self._in_service = view.in_service
        self._wanted = None
        for node in self._in_service:
            self._slots.give(node)
        for scope in self._scopes.values():
            if scope.state is ScopeState.WAITING:
                self._resume_or_wait(scope, started_ms)
        for (topic, partition), route in self._routes.items():
            self._move(topic, partition, route, started_ms, now_ms)

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
            self._follow_leader(topic, partition, route, now_ms)
        if route.state is ScopeState.HANDING_BACK or (route.flowing and not route.holds_any):
            return
        if slot is None:
            if started_ms >= route.not_before_ms:
                route.put_off(now_ms)
            self._wish.want(route.not_before_ms)
        elif self._scope(slot).flowing and (route.flowing or self._resume_or_wait(route, started_ms)):
            self._send_held(topic, partition, route, slot)

    def _follow_leader(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """The leader moved without an error: have the old one's dispatcher hand the partition back."""
        assert route.slot is not None
        route.step(ScopeEvent.PAUSE)
        route.not_before_ms = now_ms
        if self._scope(route.slot).flowing:
            self._post(route.slot, Parcel(Kind.HAND_BACK, topic, partition))

    def _send_held(self, topic: int, partition: int, route: Route, slot: int) -> None:
        """Send what a route holds: batches that were built, then the rest in order of arrival.

        They may have come here in another order: what a dead router held is found before dispatchers hand back what
        is older.
        """
        sent, rest = route.empty()
        rest.sort(key=lambda segment: find(self._slab, segment).arrival)
        self._give(route, slot)
        if sent:
            self._post(slot, Parcel(Kind.SENT, topic, partition, sent))
        if rest:
            self._post(slot, Parcel(Kind.HELD, topic, partition, rest))

    def forget(self, topic: int) -> list[Segment]:
        """The topic is gone: what its routes held."""
        held: list[Segment] = []
        for (number, _), route in self._routes.items():
            if number == topic:
                sent, rest = route.empty()
                held += sent + rest
        return held

    # --- words of dispatchers ----------------------------------------------------------------------------------------

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
        self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))
        scope = self._scope(slot) if partition == EVERYTHING else self._route(topic, partition)
        if isinstance(scope, Route) and scope.slot not in {None, slot}:
            return  # it has moved on since; the dispatcher only has to be told to go on
        if scope.pause(now_ms):
            self._row.add(Counter.PauseStarted)
        self._wish.want(scope.not_before_ms)

    def _take_back(self, slot: int, kind: Kind, topic: int, partition: int, segments: Iterable[Segment]) -> None:
        sent = kind is Kind.RETURNED_SENT
        state = State.RETURNED_SENT if sent else State.RETURNED
        taken = kernels.take(self._slab, segments, word(state, slot), self._mine_sent if sent else self._mine)
        self.hold(topic, partition, taken, sent=sent)

    def hold(self, topic: int, partition: int, segments: Iterable[Segment], *, sent: bool) -> None:
        """Keep what came back, or what a router before held, in its partition's route."""
        route = self._route(topic, partition)
        (route.returned_sent if sent else route.returned).extend(segments)

    def _handed_back(self, slot: int, topic: int, partition: int, now_ms: int) -> None:
        if partition != EVERYTHING:
            route = self._route(topic, partition)
            if route.slot in {None, slot}:
                self._is_back(route)
                self._wish.want(route.not_before_ms)
            return
        scope = self._scope(slot)
        scope.step(ScopeEvent.HANDED_BACK)
        self._wish.want(max(now_ms, scope.not_before_ms))
        for route in self._routes.values():
            if route.slot == slot:
                self._is_back(route)

    def _is_back(self, route: Route) -> None:
        route.step(ScopeEvent.HANDED_BACK)
        self._give(route, None)

    # --- after a death -----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """A new router: note who holds what, and agree anew with every dispatcher."""
        for found in sweep(self._slab, _HELD_BY_DISPATCHERS):
            self._give(self._route(found.topic, found.partition), found.holder)
        for _, slot in self._slots.pairs():
            self._resync(slot)

    def _resync(self, slot: int) -> None:
        """Agree with a dispatcher on what it holds.

        Frames may have been lost, so the dispatcher is told of everything that is assigned to it, in order.  Until it
        has answered nothing more is sent to it: what it returned to somebody who died comes first.
        """
        self._scope(slot).step(ScopeEvent.HELLO)
        assigned = sweep(self._slab, (State.ASSIGNED, State.ASSIGNED_SENT), slot)
        sent = _by_partition(found for found in assigned if found.state is State.ASSIGNED_SENT)
        fresh = (found for found in assigned if found.state is State.ASSIGNED)
        self._outbox[slot] = [
            Parcel(Kind.RESYNC),
            *(Parcel(Kind.SENT, topic, partition, some) for (topic, partition), some in sent.items()),
            *(Parcel(Kind.HELD, found.topic, found.partition, [found.segment]) for found in fresh),
        ]

    def _synced(self, slot: int, now_ms: int) -> None:
        self._scope(slot).step(ScopeEvent.SYNCED)
        for (topic, partition), route in self._routes.items():
            if route.slot == slot and route.state is ScopeState.HANDING_BACK:
                self._post(slot, Parcel(Kind.HAND_BACK, topic, partition))
            else:
                self._move(topic, partition, route, now_ms, now_ms)


def _by_partition(found: Iterable[Found]) -> dict[tuple[int, int], list[Segment]]:
    """Segments by topic and partition, in order."""
    parts: dict[tuple[int, int], list[Segment]] = {}
    for item in found:
        parts.setdefault((item.topic, item.partition), []).append(item.segment)
    return parts
