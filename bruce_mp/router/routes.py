"""The router's side of the pause/reroute protocol: the states of partitions and dispatchers.

A *scope* is a partition or a whole dispatcher.  `TRANSITIONS` is its state machine:

    SYNCING       router or dispatcher is new, and SYNCED has not come yet
    FLOWING       messages go to the leader's dispatcher
    HANDING_BACK  the dispatcher returns its messages; new messages wait in the router
    WAITING       all messages are back; new metadata decides their dispatcher

A scope never leaves WAITING before `not_before_ms`, so each metadata fetch respects its back-off.  Messages go out
again in order: built batches, then queued messages, then messages that arrived during the pause.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from bruce_mp.router.backoff import PauseBackoff
    from bruce_mp.slab.runs import Segment

__all__ = ["TRANSITIONS", "DispatcherScope", "LeaderlessBackoff", "Route", "Scope", "ScopeEvent", "ScopeState"]


@unique
class ScopeState(Enum):
    """The state of a partition or a dispatcher in the pause protocol."""

    SYNCING = "syncing"
    FLOWING = "flowing"
    HANDING_BACK = "handing back"
    WAITING = "waiting"


@unique
class ScopeEvent(Enum):
    """An event of a scope."""

    HELLO = "hello"
    SYNCED = "synced"
    PAUSE = "pause"
    HANDED_BACK = "handed back"
    RESUME = "resume"


TRANSITIONS: Final[dict[tuple[ScopeState, ScopeEvent], ScopeState]] = {
    **{(state, ScopeEvent.HELLO): ScopeState.SYNCING for state in ScopeState},
    (ScopeState.SYNCING, ScopeEvent.SYNCED): ScopeState.FLOWING,
    (ScopeState.FLOWING, ScopeEvent.PAUSE): ScopeState.HANDING_BACK,
    (ScopeState.HANDING_BACK, ScopeEvent.PAUSE): ScopeState.HANDING_BACK,
    (ScopeState.HANDING_BACK, ScopeEvent.HANDED_BACK): ScopeState.WAITING,
    (ScopeState.WAITING, ScopeEvent.RESUME): ScopeState.FLOWING,
}
"""A dispatcher repeats its report of a pause.  HELLO and SYNCED happen only to dispatchers."""


class Scope:
    """A partition or a dispatcher with its state in the protocol."""

    __slots__ = ("backoff", "not_before_ms", "since_ms", "state")

    def __init__(self, backoff: PauseBackoff, state: ScopeState = ScopeState.FLOWING) -> None:
        self.state = state
        self.backoff = backoff
        self.not_before_ms = 0
        self.since_ms = 0
        """The beginning of the last pause."""

    def step(self, event: ScopeEvent) -> None:
        """Apply `TRANSITIONS`; raise BruceError for an event that the present state does not allow."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise BruceError(f"A scope in state {self.state.value} cannot process {event.value}.") from None

    @property
    def flowing(self) -> bool:
        return self.state is ScopeState.FLOWING

    @property
    def paused(self) -> bool:
        return self.state in {ScopeState.HANDING_BACK, ScopeState.WAITING}

    def pause(self, now_ms: int) -> bool:
        """Pause the scope; return False if it was paused before."""
        news = self.flowing
        self.step(ScopeEvent.PAUSE)
        if news:
            self.since_ms = now_ms
            self.not_before_ms = now_ms + self.backoff.next_delay_ms(now_ms)
        return news


class DispatcherScope(Scope):
    """A dispatcher: `incarnation` of its newest process, and in `session` the number of the last RESYNC."""

    __slots__ = ("incarnation", "session")

    def __init__(self, backoff: PauseBackoff) -> None:
        super().__init__(backoff, ScopeState.SYNCING)
        self.incarnation = 0
        self.session = 0


LONGEST_DROUGHT_MS: Final = 2_000


class LeaderlessBackoff:
    """One back-off for all partitions without a leader, so that a thousand cause no more fetches than one.

    The back-off stays short: brokers respond, and until the leader is found again, messages with a partition key go to
    another partition.
    """

    def __init__(self, backoff: PauseBackoff) -> None:
        self.backoff = backoff
        self._not_before_ms = 0

    def due_ms(self, started_ms: int, now_ms: int) -> int:
        """Return the time of the next fetch, after one begun at `started_ms` named no leader."""
        if started_ms >= self._not_before_ms:
            self._not_before_ms = now_ms + min(self.backoff.next_delay_ms(now_ms), LONGEST_DROUGHT_MS)
        return self._not_before_ms


class Route(Scope):
    """A partition: the dispatcher slot that holds its messages, and the messages that wait in the router."""

    __slots__ = ("came_meanwhile", "is_jumbled", "returned", "returned_sent", "slot")

    def __init__(self, backoff: PauseBackoff) -> None:
        super().__init__(backoff)
        self.slot: int | None = None
        self.returned_sent: list[Segment] = []
        self.returned: list[Segment] = []
        self.came_meanwhile: list[Segment] = []
        self.is_jumbled = False
        """True if a previous router left segments of unknown origin: handed back, or new during the pause."""

    @property
    def has_waiting(self) -> bool:
        return bool(self.returned_sent or self.returned or self.came_meanwhile)

    def pop_all(self) -> tuple[list[Segment], list[Segment]]:
        """Empty the route and return (built batches, the rest), each in sending order."""
        sent, rest = self.returned_sent, self.returned + self.came_meanwhile
        self.returned_sent, self.returned, self.came_meanwhile = [], [], []
        self.is_jumbled = False
        return sent, rest
