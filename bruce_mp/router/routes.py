"""Where a partition's messages go, and what holds them back: the pause/reroute protocol as the router lives it.

A *scope* is a partition or a whole dispatcher.  Its life is a table:

    SYNCING       a dispatcher and the router have not agreed yet on what the dispatcher holds: one of them is new
    FLOWING       messages go to the dispatcher of the leader
    HANDING_BACK  the dispatcher was told to give back what it holds; what comes in waits here
    WAITING       everything is back; new metadata decides where it goes

A scope never leaves WAITING before `not_before`, so that its back-off is kept whoever asks for metadata.  What goes out
again goes in order: batches that were built, then what was queued, then what came in meanwhile.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from bruce_mp.router.backoff import PauseBackoff
    from bruce_mp.slab.runs import Segment

__all__ = ["TRANSITIONS", "Drought", "Peer", "Route", "Scope", "ScopeEvent", "ScopeState"]


@unique
class ScopeState(Enum):
    """See the module's text."""

    SYNCING = "syncing"
    FLOWING = "flowing"
    HANDING_BACK = "handing back"
    WAITING = "waiting"


@unique
class ScopeEvent(Enum):
    """What happens to a scope."""

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
"""A pause may be told twice: a dispatcher reminds us.  HELLO and SYNCED happen only to dispatchers."""


class Scope:
    """A partition or a dispatcher, and where it stands in the protocol."""

    __slots__ = ("backoff", "not_before_ms", "since_ms", "state")

    def __init__(self, backoff: PauseBackoff, state: ScopeState = ScopeState.FLOWING) -> None:
        self.state = state
        self.backoff = backoff
        self.not_before_ms = 0
        self.since_ms = 0
        """When its last pause began."""

    def step(self, event: ScopeEvent) -> None:
        """Follow the table.  Raises BruceError for what it does not allow."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise BruceError(f"A scope that is {self.state.value} was told: {event.value}.") from None

    @property
    def flowing(self) -> bool:
        return self.state is ScopeState.FLOWING

    @property
    def paused(self) -> bool:
        return self.state in {ScopeState.HANDING_BACK, ScopeState.WAITING}

    def pause(self, now_ms: int) -> bool:
        """Pause; True when it was not paused before."""
        news = self.flowing
        self.step(ScopeEvent.PAUSE)
        if news:
            self.since_ms = now_ms
            self.not_before_ms = now_ms + self.backoff.next_delay_ms(now_ms)
        return news


class Peer(Scope):
    """A dispatcher.  `incarnation` is that of its newest process, `session` the number of our last RESYNC to it."""

    __slots__ = ("incarnation", "session")

    def __init__(self, backoff: PauseBackoff) -> None:
        super().__init__(backoff, ScopeState.SYNCING)
        self.incarnation = 0
        self.session = 0


LONGEST_DROUGHT_MS: Final = 2_000


class Drought:
    """Partitions without a leader: one back-off for all, so that a thousand of them ask no more often than one.

    It stays short, because some broker does answer: a leader that is back should be noticed, and messages with a
    partition key go to another partition until then.
    """

    def __init__(self, backoff: PauseBackoff) -> None:
        self.backoff = backoff
        self._not_before_ms = 0

    def until(self, started_ms: int, now_ms: int) -> int:
        """When to ask again, after metadata that was asked for at `started_ms` did not help."""
        if started_ms >= self._not_before_ms:
            self._not_before_ms = now_ms + min(self.backoff.next_delay_ms(now_ms), LONGEST_DROUGHT_MS)
        return self._not_before_ms


class Route(Scope):
    """A partition: the slot that holds its messages, and those that wait here."""

    __slots__ = ("came_meanwhile", "is_jumbled", "returned", "returned_sent", "slot")

    def __init__(self, backoff: PauseBackoff) -> None:
        super().__init__(backoff)
        self.slot: int | None = None
        self.returned_sent: list[Segment] = []
        self.returned: list[Segment] = []
        self.came_meanwhile: list[Segment] = []
        self.is_jumbled = False
        """A router before left some of it, of which we do not know whether it was handed back or came meanwhile."""

    @property
    def holds_any(self) -> bool:
        return bool(self.returned_sent or self.returned or self.came_meanwhile)

    def empty(self) -> tuple[list[Segment], list[Segment]]:
        """(built batches, the rest), in the order in which they have to go out; the route holds nothing then."""
        sent, rest = self.returned_sent, self.returned + self.came_meanwhile
        self.returned_sent, self.returned, self.came_meanwhile = [], [], []
        self.is_jumbled = False
        return sent, rest
