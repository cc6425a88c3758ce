"""The pause/reroute protocol as a table."""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from bruce_mp.errors import BruceError
from bruce_mp.router.backoff import RouterBackoff
from bruce_mp.router.pause_protocol import (
    TRANSITIONS,
    DispatcherScope,
    Route,
    Scope,
    ScopeEvent,
    ScopeState,
    find_routes_to_follow,
)
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


def test_new_metadata_concerns_only_routes_that_wait_are_paused_or_have_another_leader() -> None:
    routes = {(1, partition): Route(backoff()) for partition in range(9)}
    for partition, waiting in enumerate(("arrived", "returned", "returned_built")):
        getattr(routes[1, partition], waiting).append(Segment(0, 1, 64, 152, 1, 1))
    routes[1, 3].state, routes[1, 4].state = ScopeState.WAITING, ScopeState.HANDING_BACK
    for partition in (5, 6, 7):
        routes[1, partition].slot = 20
    leaders = {5: 1, 6: 2, 8: 1}  # 6 has moved, 7 has no leader, 8 is held by no dispatcher
    found = find_routes_to_follow(routes, {1: leaders}.__getitem__, {1: 20, 2: 30})
    assert [partition for (_, partition), _ in found] == [0, 1, 2, 3, 4, 6]
