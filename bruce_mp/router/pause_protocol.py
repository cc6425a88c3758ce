"""The state machine of the pause protocol between router and dispatchers.

A scope, a unit that can pause, is a partition or a dispatcher with all its partitions.  A scope is in a state:

    SYNCING       (only a dispatcher) the router or the dispatcher has started, and SYNCED has not arrived yet
    FLOWING       messages go to the dispatcher of the partition's leader
    HANDING_BACK  the dispatcher returns its messages; new messages wait in the router
    WAITING       all messages are back in the router, and wait for metadata that names the leader

A pause (HANDING_BACK, then WAITING) has one of three causes: an error at the dispatcher, the router's `hand_back_all`,
or a *recall*, because metadata names another leader, or lacks the topic or the partition.  After a recall the present
metadata is enough to resume the scope.  After any other pause the scope stays WAITING until the router has metadata of
a fetch that began after the scope's back-off.  Then the router sends first the batches that a dispatcher has built and
perhaps sent, then the other returned messages, then the messages that arrived during the pause.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.router.backoff import RouterBackoff
    from bruce_mp.slab.runs import Segment

__all__ = ["TRANSITIONS", "DispatcherScope", "Route", "Scope", "ScopeEvent", "ScopeState", "find_routes_to_follow"]


@unique
class ScopeState(Enum):
    SYNCING = "syncing"
    FLOWING = "flowing"
    HANDING_BACK = "handing back"
    WAITING = "waiting"


@unique
class ScopeEvent(Enum):
    RESYNC = "resync"
    SYNCED = "synced"
    PAUSE = "pause"
    HANDED_BACK = "handed back"
    RESUME = "resume"


TRANSITIONS: Final[dict[tuple[ScopeState, ScopeEvent], ScopeState]] = {
    **{(state, ScopeEvent.RESYNC): ScopeState.SYNCING for state in ScopeState},
    (ScopeState.SYNCING, ScopeEvent.SYNCED): ScopeState.FLOWING,
    (ScopeState.FLOWING, ScopeEvent.PAUSE): ScopeState.HANDING_BACK,
    (ScopeState.HANDING_BACK, ScopeEvent.PAUSE): ScopeState.HANDING_BACK,
    (ScopeState.HANDING_BACK, ScopeEvent.HANDED_BACK): ScopeState.WAITING,
    (ScopeState.WAITING, ScopeEvent.RESUME): ScopeState.FLOWING,
}
"""The next state for a state and an event.  PAUSE may come in HANDING_BACK, because a dispatcher repeats PAUSED.
Partitions have no events RESYNC and SYNCED."""


class Scope:
    """The state of a partition or a dispatcher in the pause protocol.  Times are in ms on a steady clock."""

    __slots__ = ("backoff", "backoff_end_ms", "pause_start_ms", "state", "was_recalled")

    def __init__(self, backoff: RouterBackoff, state: ScopeState = ScopeState.FLOWING) -> None:
        self.state = state
        self.backoff = backoff
        self.backoff_end_ms = 0
        """The end of the back-off; 0 after a recall.  Only metadata of a fetch that began later resumes the scope."""
        self.pause_start_ms = 0
        """The start of the current or last pause."""
        self.was_recalled = False
        """True if the current or last pause is a recall."""

    def step(self, event: ScopeEvent) -> None:
        """Apply an event; raise BruceError if `TRANSITIONS` does not allow it in this state."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise BruceError(f"A scope in state {self.state.value} cannot process {event.value}.") from None

    @property
    def is_flowing(self) -> bool:
        return self.state is ScopeState.FLOWING

    @property
    def is_paused(self) -> bool:
        # Not `in {...}`: the hash of an enum member costs a call, and a report asks thousands of routes.
        return self.state is ScopeState.HANDING_BACK or self.state is ScopeState.WAITING

    def pause(self, now_ms: int) -> bool:
        """Pause the scope, start its back-off and return True; return False if the scope is HANDING_BACK already.

        Raise BruceError in SYNCING and WAITING.
        """
        was_flowing = self.is_flowing
        self.step(ScopeEvent.PAUSE)
        if was_flowing:
            self.pause_start_ms, self.was_recalled = now_ms, False
            self.backoff_end_ms = now_ms + self.backoff.next_delay_ms(now_ms)
        return was_flowing


class DispatcherScope(Scope):
    """The scope of a dispatcher; `incarnation` is the newest known incarnation in the dispatcher's slot."""

    __slots__ = ("incarnation", "resync_number")

    def __init__(self, backoff: RouterBackoff) -> None:
        super().__init__(backoff, ScopeState.SYNCING)
        self.incarnation = 0
        self.resync_number = 0
        """The number of the last RESYNC that the router sent to the dispatcher."""


class Route(Scope):
    """The scope of a partition, with the messages of the partition that wait in the router.

    `slot` is the slot of the dispatcher that holds the partition, None if no dispatcher does.
    """

    __slots__ = ("arrived", "needs_sorting", "returned", "returned_built", "slot")

    def __init__(self, backoff: RouterBackoff) -> None:
        super().__init__(backoff)
        self.slot: int | None = None
        self.returned_built: list[Segment] = []
        """Segments of built batches that a dispatcher returned."""
        self.returned: list[Segment] = []
        """Other segments that a dispatcher returned: their records were never sent."""
        self.arrived: list[Segment] = []
        """Segments that came from inputs while the partition was not open."""
        self.needs_sorting = False
        """True if `returned` may be out of order: it begins with segments of a dead router, and a dispatcher may return
        older segments after them."""

    def recall(self, now_ms: int) -> None:
        """Begin a recall: pause without a back-off."""
        self.step(ScopeEvent.PAUSE)
        self.backoff_end_ms, self.pause_start_ms = 0, now_ms
        self.was_recalled = True

    @property
    def has_waiting(self) -> bool:
        return bool(self.returned_built or self.returned or self.arrived)

    @property
    def first_segment(self) -> Segment | None:
        """The segment that the router sends first, unless `needs_sorting` is True; None if no segment waits."""
        waiting = self.returned_built or self.returned or self.arrived
        return waiting[0] if waiting else None

    @property
    def message_count(self) -> int:
        return sum(segment.records for segment in (*self.returned_built, *self.returned, *self.arrived))

    def add_returned(self, segments: Iterable[Segment], *, is_built: bool) -> None:
        """Append segments that a dispatcher returned; `is_built` is True for segments of built batches."""
        (self.returned_built if is_built else self.returned).extend(segments)

    def pop_all(self) -> tuple[list[Segment], list[Segment]]:
        """Empty the route and return (segments of built batches, other segments), each in sending order."""
        built, unbuilt = self.returned_built, self.returned + self.arrived
        self.returned_built, self.returned, self.arrived = [], [], []
        self.needs_sorting = False
        return built, unbuilt


def find_routes_to_follow(
    routes: Mapping[tuple[int, int], Route],
    leaders_of: Callable[[int], Mapping[int, int]],
    slots: Mapping[int, int],
) -> list[tuple[tuple[int, int], Route]]:
    """Return the routes on which new metadata may have an effect, with their topic numbers and partitions.

    These have waiting messages, are paused, or are held by another dispatcher than that of the leader.  `leaders_of`
    returns for a topic number the leader of each partition; `slots` has the dispatcher's slot for each leader.
    """
    leaders = {topic: leaders_of(topic) for topic in {topic for topic, _ in routes}}
    found = []
    for (topic, partition), route in routes.items():
        # `has_waiting` and `is_flowing`, inlined because a refresh asks thousands of routes
        if route.arrived or route.returned or route.returned_built or route.state is not ScopeState.FLOWING:
            found.append(((topic, partition), route))
        elif route.slot is not None:
            leader = leaders[topic].get(partition)
            if leader is not None and slots.get(leader, route.slot) != route.slot:
                found.append(((topic, partition), route))
    return found
