"""The pause/reroute protocol as a table."""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from bruce_mp.errors import BruceError
from bruce_mp.router.backoff import RouterBackoff
from bruce_mp.router.pause_protocol import TRANSITIONS, DispatcherScope, Route, Scope, ScopeEvent, ScopeState
from bruce_mp.slab.runs import Segment

EVERY_STEP: Final = list(itertools.product(ScopeState, ScopeEvent))


def backoff() -> RouterBackoff:
    return RouterBackoff(100, 2, 50, random.Random(1))


@pytest.mark.parametrize(("state", "event"), EVERY_STEP)
def test_a_scope_follows_exactly_the_transition_table(state: ScopeState, event: ScopeEvent) -> None:
    scope = Scope(backoff(), state)
    expected = TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(BruceError, match=state.value):
            scope.step(event)
    else:
        scope.step(event)
    assert scope.state is (expected or state)


def test_a_repeated_pause_keeps_the_backoff() -> None:
    scope = Scope(backoff())
    assert scope.pause(1000)
    until = scope.backoff_end_ms
    assert 1050 <= until <= 1150
    assert not scope.pause(1020)
    assert scope.backoff_end_ms == until
    assert scope.is_paused


def test_every_scope_state_leads_back_to_flowing() -> None:
    """From each state there is a way back to FLOWING."""
    flowing = {ScopeState.FLOWING}
    for _ in ScopeState:
        flowing |= {state for (state, _), following in TRANSITIONS.items() if following in flowing}
    assert flowing == set(ScopeState)


def test_a_dispatcher_scope_starts_in_syncing() -> None:
    assert DispatcherScope(backoff()).state is ScopeState.SYNCING


def test_a_route_is_emptied_in_send_order() -> None:
    route = Route(backoff())
    built, queued, late = (Segment(chunk, 1, 64, 152, 1, 1) for chunk in range(3))
    route.arrived.append(late)
    route.returned.append(queued)
    route.returned_built.append(built)
    assert route.has_waiting
    assert route.pop_all() == ([built], [queued, late])
    assert not route.has_waiting
