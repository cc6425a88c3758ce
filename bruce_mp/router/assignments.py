"""Assignment of partitions to dispatchers: the router sends messages to dispatchers, and requests them back in a pause.

A dispatcher sends the messages of all partitions that one broker leads.  Every partition with traffic has a `Route`,
every dispatcher a `DispatcherScope`; both are scopes, which can pause (`pause_protocol`).  Messages that cannot be sent
wait in the route of their partition.

One dispatcher at a time *holds* a partition: `Route.slot` is the dispatcher's slot until the dispatcher sends
HANDED_BACK.  The dispatcher answers each HAND_BACK with one HANDED_BACK, so the router sends only one HAND_BACK in a
pause.  When a router or a dispatcher starts, all frames that were sent before the start become void.  The router sends
the dispatcher RESYNC with a new number, and nothing else until the dispatcher has answered SYNCED with that number.

Records of *built* batches have states and parcels with names that end in SENT.  Kafka may have received such a batch,
so the batch must be sent again unchanged, with the same sequence numbers.
"""

from __future__ import annotations

from itertools import chain, count
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.router.backoff import LeaderlessBackoff, RouterBackoff
from bruce_mp.router.dispatchers import DispatcherSet
from bruce_mp.router.pause_protocol import DispatcherScope, Route, ScopeEvent, ScopeState, find_routes_to_follow
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import inspect_segment, sweep
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping

    from bruce_mp.config.sections import Delivery
    from bruce_mp.kernels import ChosenPartition
    from bruce_mp.router.cluster import Address, ClusterView
    from bruce_mp.router.metadata_refresh import FetchSchedule
    from bruce_mp.router.outbox import Outbox
    from bruce_mp.router.pause_protocol import Scope
    from bruce_mp.router.slab_tables import SlabTables
    from bruce_mp.router.topics import Topic
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import FoundSegment
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Assignments"]

_DISPATCHER_STATES: Final = (
    RunState.ASSIGNED,
    RunState.ASSIGNED_SENT,
    RunState.QUEUED,
    RunState.IN_FLIGHT,
    RunState.RETURNED,
    RunState.RETURNED_SENT,
)
"""The states of records that dispatchers hold.  RETURNED is included: the router must claim the returned records of a
partition before it sends newer records of the partition."""

_ASSIGNED_STATES: Final = (RunState.ASSIGNED, RunState.ASSIGNED_SENT)
"""The states of records that are assigned to a dispatcher, but not claimed by it."""

_TopicPartition = tuple[int, int]  # topic number, partition


class Assignments:
    """The routes of partitions and the scopes of dispatchers.  Times are in ms on one steady clock.

    `leaders_of` returns for a topic number the id of the broker that leads each partition with a known leader.
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
        leaders_of: Callable[[int], Mapping[int, int]],
        fetch_schedule: FetchSchedule,
        rng: random.Random,
    ) -> None:
        self._slab = slab
        self._row = row
        self._delivery = delivery
        self._incarnation = incarnation
        self._leaders_of = leaders_of
        self._fetch_schedule = fetch_schedule
        self._rng = rng
        self._tables = tables
        self._dispatchers = DispatcherSet(slab, tables, self._find_slots_in_use)
        self._slots = self._dispatchers.slots
        self.dispatchers_to_run = self._dispatchers.dispatchers_to_run
        self._outbox = outbox
        self.flush_topic, self.send_queues = outbox.post_flush, outbox.send_queues
        self._dispatcher_scopes: dict[int, DispatcherScope] = {}
        self._resync_numbers = count(1)
        self._routes: dict[_TopicPartition, Route] = {}
        self._leaderless_backoff = LeaderlessBackoff(self._new_backoff())
        self._metadata_started_ms = 0
        """The time at which the fetch of the present metadata began."""
        self.open_partitions: dict[_TopicPartition, ChosenPartition] = {}
        """A cache of the partitions that are known to be open."""
        self.choices: dict[int, ChosenPartition] = {}
        """By topic number: the partition that the present turn of brokers has chosen for AnyPartition messages."""
        self.choosers: dict[int, Topic] = {}
        """By number: the topics that may make a choice.  They are plain, and have no batch and no parked messages.

        New metadata, each frame of a dispatcher and `hand_back_all` clear the last three dictionaries, because these
        may close partitions."""

    # --- state for process and reports -------------------------------------------------------------------------------

    def paused_scopes(self) -> list[tuple[int | None, _TopicPartition | None, Scope]]:
        """Return (slot, None, scope) of paused dispatchers, and (slot or None, (topic, partition), scope) of routes."""
        scopes = [(slot, None, scope) for slot, scope in self._dispatcher_scopes.items() if scope.is_paused]
        routes = [
            (route.slot, key, route)
            for key, route in self._routes.items()
            # This is `is_paused` (a route is never SYNCING), inlined because reports ask thousands of routes.
            if route.state is not ScopeState.FLOWING
        ]
        return [*scopes, *routes]

    def brokers_of_paused_dispatchers(self) -> list[Address]:
        addresses = {slot: address for slot, (_, address) in (self.dispatchers_to_run() or {}).items()}
        paused = (slot for slot, scope in self._dispatcher_scopes.items() if scope.is_paused)
        return [addresses[slot] for slot in paused if slot in addresses]

    def leaderless_partitions(self) -> list[_TopicPartition]:
        """Return (topic, partition) of each unpaused route with messages that wait for a leader."""
        waiting = (key for key, route in self._find_waiting_routes() if not route.is_paused)
        return [key for key in waiting if self._leader_slot(*key) is None]

    def waiting_routes(self) -> Iterator[tuple[_TopicPartition, int | None, Route]]:
        """Yield ((topic, partition), leader or None, route) of each partition with messages that wait in the router."""
        for key, route in self._find_waiting_routes():
            yield key, self._leaders_of(key[0]).get(key[1]), route

    def _find_waiting_routes(self) -> list[tuple[_TopicPartition, Route]]:
        return [
            (key, route)
            for key, route in self._routes.items()
            # This is `has_waiting`, inlined because reports ask thousands of routes each second.
            if route.arrived or route.returned or route.returned_built
        ]

    def _find_slots_in_use(self) -> set[int | None]:
        """Return the slots of dispatchers that hold partitions, and None if a partition has no holder."""
        return {route.slot for route in self._routes.values()}

    @property
    def partitions(self) -> KeysView[_TopicPartition]:
        """(topic, partition) of each partition with a route."""
        return self._routes.keys()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _leader_slot(self, topic: int, partition: int) -> int | None:
        """Return the dispatcher slot of the partition's leader; None if it has no leader or the leader has no slot."""
        leader = self._leaders_of(topic).get(partition)
        return None if leader is None else self._slots.get(leader)

    def is_open(self, topic: int, partition: int) -> bool:
        """Return True if messages for the partition can be sent now."""
        if (topic, partition) in self.open_partitions:
            return True
        slot = self._leader_slot(topic, partition)
        route = self._routes.get((topic, partition))
        return slot is not None and self._ensure_scope(slot).is_flowing and (route is None or route.is_flowing)

    def _forget_open(self) -> None:
        self.open_partitions.clear()
        self.choices.clear()
        self.choosers.clear()

    def is_starting(self, topic: int, partition: int) -> bool:
        """Return True if the partition's dispatcher has not answered RESYNC yet."""
        slot = self._leader_slot(topic, partition)
        return slot is not None and self._ensure_scope(slot).state is ScopeState.SYNCING

    def send(
        self, kind: ParcelKind, segments_of: Mapping[_TopicPartition, list[Segment]], now_ms: int
    ) -> dict[_TopicPartition, list[Segment]]:
        """Bind segments to their partitions, and send them to dispatchers or append them to their routes.

        If `kind` is QUEUE, the segments are only added to the outbox's queues, for `send_queues`.  Return the segments
        of partitions for which the slab's partition table has no room.
        """
        refused: dict[_TopicPartition, list[Segment]] = {}
        for (topic, partition), segments in segments_of.items():
            choice = self.open_partitions.get((topic, partition))
            if choice is None:
                if not self._ensure_entry(topic, partition):
                    refused[topic, partition] = segments
                    continue
                choice = self._assign_to_leader(topic, partition, now_ms)
            if choice is not None and kind is ParcelKind.QUEUE:
                choice.queue.segments.extend(segments)
                choice.queue.partitions.extend([partition] * len(segments))
                choice.queue.topics.append(topic)
                continue
            bound = self._outbox.bind(segments, [partition] * len(segments))
            if choice is None:
                self._routes[topic, partition].arrived += bound
            elif bound:
                self._outbox.post(choice.queue.slot, Parcel(kind, topic, partition, bound))
        return refused

    def _ensure_entry(self, topic: int, partition: int) -> bool:
        """Give the partition an entry in the slab's partition table; return False if the table is full."""
        return (topic, partition) in self._routes or self._tables.partitions.ensure_entry(topic, partition)

    def _assign_to_leader(self, topic: int, partition: int, now_ms: int) -> ChosenPartition | None:
        """Let the leader's dispatcher hold a partition, and return its choice; return None if messages must wait."""
        route = self._ensure_route(topic, partition)
        slot = self._leader_slot(topic, partition)
        if slot is None:
            self.request_leader(now_ms)
            return None
        is_held_elsewhere = route.slot not in {None, slot}
        if route.has_waiting or is_held_elsewhere or not self.is_open(topic, partition):
            return None
        self._set_holder(route, slot)
        choice = self.open_partitions[topic, partition] = self._outbox.choice_of(slot, partition)
        return choice

    def request_leader(self, now_ms: int) -> None:
        """Request metadata, because messages have no leader with an open dispatcher."""
        self._fetch_schedule.request_after_error(
            self._leaderless_backoff.next_fetch_time_ms(after_ms=now_ms, now_ms=now_ms)
        )

    def _set_holder(self, route: Route, slot: int | None) -> None:
        if route.slot != slot:
            route.slot = slot
            self._dispatchers.on_holder_changed()

    def _ensure_scope(self, slot: int) -> DispatcherScope:
        """Return the scope of a dispatcher; create it if needed."""
        scope = self._dispatcher_scopes.get(slot)
        if scope is None:
            scope = self._dispatcher_scopes[slot] = DispatcherScope(self._new_backoff())
        return scope

    def _ensure_route(self, topic: int, partition: int) -> Route:
        """Return the route of a partition; create it, and the partition's entry in the slab's table, if needed."""
        route = self._routes.get((topic, partition))
        if route is None:
            route = self._routes[topic, partition] = Route(self._new_backoff())
            self._tables.partitions.ensure_entry(topic, partition)
        return route

    def _new_backoff(self) -> RouterBackoff:
        return RouterBackoff(*self._delivery.backoff, self._rng)

    def apply_config(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._leaderless_backoff.backoff.apply_config(*delivery.backoff)
        for scope in (*self._dispatcher_scopes.values(), *self._routes.values()):
            scope.backoff.apply_config(*delivery.backoff)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> None:
        """Reassign partitions after leader changes, and resume paused scopes after their back-off.

        `started_ms` is the time at which the fetch of the metadata began.
        """
        self._metadata_started_ms = started_ms
        self._forget_open()
        for freed_slot in self._dispatchers.on_metadata(view, now_ms):
            removed = self._dispatcher_scopes.pop(freed_slot, None)
            if removed is not None and removed.is_paused:
                self._row.add(Counter.PauseFinished)
            self._outbox.remove_slot(freed_slot)
        for dispatcher in self._dispatcher_scopes.values():
            if dispatcher.state is ScopeState.WAITING:
                self._try_resume(dispatcher)
        for (topic, partition), route in find_routes_to_follow(self._routes, self._leaders_of, self._slots):
            self._follow_leader(topic, partition, route, now_ms)

    def hand_back_all(self, now_ms: int) -> None:
        """Request all messages back from all dispatchers, so that the router assigns them again."""
        self._forget_open()
        self._dispatchers.include_holders()  # a dispatcher must run to hand back its messages
        for slot, dispatcher in self._dispatcher_scopes.items():
            if dispatcher.is_flowing and dispatcher.pause(now_ms):
                self._row.add(Counter.PauseStarted)
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, partition=EVERYTHING))

    @property
    def holds_everything(self) -> bool:
        """True if the router holds all messages: no dispatcher holds a partition or may get messages now."""
        may_get_or_hold = any(
            scope.is_flowing or scope.state is ScopeState.HANDING_BACK for scope in self._dispatcher_scopes.values()
        )
        return not may_get_or_hold and all(route.slot is None for route in self._routes.values())

    def _try_resume(self, scope: Scope) -> bool:
        """Resume a waiting scope and return True if the present metadata is new enough; else request newer metadata."""
        if self._metadata_started_ms < scope.backoff_end_ms:
            self._fetch_schedule.request_after_error(scope.backoff_end_ms)
            return False
        scope.step(ScopeEvent.RESUME)
        self._row.add(Counter.PauseFinished)
        return True

    def _follow_leader(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """Send a route's waiting messages to the leader's dispatcher.

        If another dispatcher holds the partition, instead request the partition's messages back from that dispatcher.
        """
        slot = self._leader_slot(topic, partition)
        if route.is_flowing and route.slot is not None and slot not in {None, route.slot}:
            self._recall(topic, partition, route, now_ms)
        if route.state is ScopeState.HANDING_BACK:
            return
        if slot is None:
            if route.has_waiting:
                fetch_ms = self._leaderless_backoff.next_fetch_time_ms(
                    after_ms=self._metadata_started_ms, now_ms=now_ms
                )
                self._fetch_schedule.request_after_error(fetch_ms)
        elif self._ensure_scope(slot).is_flowing and (route.is_flowing or self._try_resume(route)):
            self._send_waiting(topic, partition, route, slot)

    def _recall(self, topic: int, partition: int, route: Route, now_ms: int) -> None:
        """Request a partition's messages back, because metadata names another leader or lacks the partition."""
        assert route.slot is not None
        route.recall(now_ms)
        self._row.add(Counter.PauseStarted)
        # In state SYNCING, `_on_synced` posts HAND_BACK later.  In a pause, HAND_BACK of EVERYTHING was posted before.
        if self._ensure_scope(route.slot).is_flowing:
            self._outbox.post(route.slot, Parcel(ParcelKind.HAND_BACK, topic, partition))

    def _send_waiting(self, topic: int, partition: int, route: Route, slot: int) -> None:
        """Send a route's waiting messages: first built batches, then the other messages in order of arrival."""
        if not route.has_waiting:
            return
        needs_sorting = route.needs_sorting
        built, rest = route.pop_all()
        if needs_sorting:
            rest.sort(key=lambda segment: inspect_segment(self._slab, segment).arrival)
        self._set_holder(route, slot)
        if built:
            self._outbox.post(slot, Parcel(ParcelKind.SENT, topic, partition, built))
        if rest:
            self._outbox.post(slot, Parcel(ParcelKind.WAITED, topic, partition, rest))

    def remove_topic(self, topic: int, now_ms: int) -> list[Segment]:
        """Remove the routes of a deleted topic (`_remove_route`), and return the segments that wait in them."""
        waiting: list[Segment] = []
        self._outbox.remove_topic(topic)
        for key, route in [(key, route) for key, route in self._routes.items() if key[0] == topic]:
            waiting += chain(*route.pop_all())
            self._remove_route(key, route, now_ms)
        return waiting

    def remove_lost(self, lost: Iterable[_TopicPartition], now_ms: int) -> list[tuple[int, Route]]:
        """Remove the routes of lost partitions (`_remove_route`); return the removed ones with their topic numbers."""
        routes = [(key, self._routes[key]) for key in lost]
        return [(key[0], route) for key, route in routes if self._remove_route(key, route, now_ms)]

    def _remove_route(self, key: _TopicPartition, route: Route, now_ms: int) -> bool:
        """Remove a route and return True; return False if a dispatcher holds the partition.

        In that case, request the partition's messages back; a later call removes the route.
        """
        if route.slot is None:
            self._row.add(Counter.PauseFinished, int(route.is_paused))
            del self._routes[key]
        elif route.is_flowing:
            self._recall(*key, route, now_ms)
        return route.slot is None

    # --- frames of dispatchers ---------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Process one dispatcher's frame; its first parcel, SENDER, has the dispatcher's slot and incarnation."""
        _, slot, incarnation, _ = parcels[0]  # in the fields `topic` and `partition`; RESYNC and SYNCED also reuse them
        self._forget_open()
        dispatcher = self._ensure_scope(slot)
        if incarnation < dispatcher.incarnation:
            return  # the sender is dead, and its successor repeats what still applies
        dispatcher.incarnation = incarnation
        for parcel in parcels[1:]:
            if parcel.kind in {ParcelKind.RETURNED, ParcelKind.RETURNED_SENT}:
                self._claim_returned(slot, parcel)
            elif parcel.kind is ParcelKind.HELLO:
                self._resync(slot, sweep(self._slab, _ASSIGNED_STATES, slot))
            elif parcel.kind is ParcelKind.SYNCED:
                answers_last_resync = (parcel.topic, parcel.partition) == (dispatcher.resync_number, self._incarnation)
                if answers_last_resync:
                    self._on_synced(slot, now_ms)
            elif dispatcher.state is not ScopeState.SYNCING:
                self._on_paused_or_handed_back(slot, dispatcher, parcel, now_ms)

    def _on_paused_or_handed_back(self, slot: int, dispatcher: DispatcherScope, parcel: Parcel, now_ms: int) -> None:
        kind, topic, partition, _ = parcel
        scope = dispatcher if partition == EVERYTHING else self._ensure_route(topic, partition)
        if kind is ParcelKind.PAUSED and scope.pause(now_ms):
            self._row.add(Counter.PauseStarted)
            # If the whole dispatcher is paused, HAND_BACK of EVERYTHING includes this partition.
            if scope is dispatcher or dispatcher.is_flowing:
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, topic, partition))
        elif kind is ParcelKind.HANDED_BACK:
            self._on_handed_back(slot, topic, partition, scope, now_ms)

    def _claim_returned(self, slot: int, parcel: Parcel) -> None:
        """Claim returned records for the router, and add them to the route of their partition."""
        is_built = parcel.kind is ParcelKind.RETURNED_SENT
        returned_word = state_word(RunState.RETURNED_SENT if is_built else RunState.RETURNED, slot)
        routed_word = state_word(RunState.ROUTED_SENT if is_built else RunState.ROUTED, self._incarnation)
        claimed = kernels.claim(self._slab, parcel.segments, returned_word, routed_word)
        self._ensure_route(parcel.topic, parcel.partition).add_returned(claimed, is_built=is_built)

    def _on_handed_back(self, slot: int, topic: int, partition: int, scope: Scope, now_ms: int) -> None:
        """End the hand-back of a scope: after a recall send the scope's messages at once, else request metadata."""
        scope.step(ScopeEvent.HANDED_BACK)
        if isinstance(scope, Route):
            self._set_holder(scope, None)
            if scope.was_recalled and self._leader_slot(topic, partition) is not None:
                self._follow_leader(topic, partition, scope, now_ms)
                return
        else:
            self._release_routes(slot)
        self._fetch_schedule.request_after_error(max(now_ms, scope.backoff_end_ms))

    def _release_routes(self, slot: int) -> None:
        """Record that a dispatcher has handed back all its partitions."""
        for route in self._routes.values():
            if route.slot == slot:
                self._set_holder(route, None)
                if route.state is ScopeState.HANDING_BACK:
                    route.step(ScopeEvent.HANDED_BACK)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def adopt(self, topic: int, partition: int, segments: Iterable[Segment], *, is_built: bool) -> None:
        """Add segments of a dead router to a partition's route; `is_built` is True for segments of built batches."""
        route = self._ensure_route(topic, partition)
        route.add_returned(segments, is_built=is_built)
        route.needs_sorting = True

    def recover(self) -> None:
        """Find the dispatcher that holds each partition, and send RESYNC to every dispatcher.

        `adopt` must have been called for the segments of the previous router.
        """
        held = sweep(self._slab, _DISPATCHER_STATES)
        for found in held:
            self._set_holder(self._ensure_route(found.topic, found.partition), found.holder)
        for slot in self._slots.values():
            self._resync(slot, [found for found in held if found.holder == slot and found.state in _ASSIGNED_STATES])

    def _resync(self, slot: int, assigned: list[FoundSegment]) -> None:
        """Send RESYNC, and again the `assigned` records, because the frame that assigned them may be lost.

        The dispatcher repeats RETURNED for records that no router has claimed, and then sends SYNCED.  These records
        are older than the records that wait in the router, so the router sends nothing else until SYNCED arrives.
        """
        dispatcher = self._ensure_scope(slot)
        if dispatcher.is_paused:
            self._row.add(Counter.PauseFinished)
        dispatcher.step(ScopeEvent.RESYNC)
        dispatcher.resync_number = next(self._resync_numbers)
        built = _group_by_partition(found for found in assigned if found.state is RunState.ASSIGNED_SENT)
        unbuilt = (found for found in assigned if found.state is RunState.ASSIGNED)
        parcels = [Parcel(ParcelKind.RESYNC, dispatcher.resync_number)]
        for (topic, partition), segments in built.items():
            # A dead router may have assigned only a part of a batch: add the rest, because the batch must not change.
            route = self._ensure_route(topic, partition)
            rest, route.returned_built = route.returned_built, []
            self._outbox.assign(slot, rest, is_built=True)
            parcels.append(Parcel(ParcelKind.SENT, topic, partition, segments + rest))
        parcels += [Parcel(ParcelKind.WAITED, found.topic, found.partition, [found.segment]) for found in unbuilt]
        self._outbox.replace(slot, parcels)

    def _on_synced(self, slot: int, now_ms: int) -> None:
        self._ensure_scope(slot).step(ScopeEvent.SYNCED)
        for (topic, partition), route in self._routes.items():
            if route.slot == slot and route.state is ScopeState.HANDING_BACK:
                self._outbox.post(slot, Parcel(ParcelKind.HAND_BACK, topic, partition))
            else:
                self._follow_leader(topic, partition, route, now_ms)


def _group_by_partition(found: Iterable[FoundSegment]) -> dict[_TopicPartition, list[Segment]]:
    groups: dict[_TopicPartition, list[Segment]] = {}
    for part in found:
        groups.setdefault((part.topic, part.partition), []).append(part.segment)
    return groups
